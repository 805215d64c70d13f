/** Prometheus' text format, as far as the engine view reads it. Pure. */

function parseMetrics(text) {
	const values = {};
	for (const line of text.split('\n')) {
		if (!line || line[0] === '#') continue;
		const found = /^([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)/.exec(line);
		const value = found ? Number(found[2]) : NaN;
		if (Number.isFinite(value)) values[found[1]] = (values[found[1]] ?? 0) + value;
	}
	return values;
}

export function sampleOf(text, at) {
	const values = parseMetrics(text);
	const get = (name) => values[`tinyllm:${name}`] ?? 0;
	return {
		at,
		running: get('num_requests_running'),
		waiting: get('num_requests_waiting'),
		kv: get('kv_cache_usage_perc'),
		generated: get('generation_tokens_total'),
		queries: get('prefix_cache_queries_total'),
		hits: get('prefix_cache_hits_total'),
		preemptions: get('num_preemptions_total'),
	};
}

/** Tokens a second between two samples; 0 after the server began anew. */
export function rateBetween(before, after) {
	const seconds = (after.at - before.at) / 1000;
	return seconds > 0 ? Math.max(0, after.generated - before.generated) / seconds : 0;
}

/** What share of the prompt tokens between two samples came from the prefix cache, or null if there were none. */
export function hitShare(before, after) {
	const queries = after.queries - before.queries;
	return queries > 0 ? Math.max(0, after.hits - before.hits) / queries : null;
}
