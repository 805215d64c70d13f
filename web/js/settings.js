/** What the person chose, how it goes into a request, and where it is kept. */

const KEY = 'tinyllm.settings';
const KEY_OF_KEY = 'tinyllm.key';

/** Every number that a request may carry; `otherwise` is what holds if neither person nor model says anything. */
export const FIELDS = [
	{ name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.05, help: '0 always takes the most likely token; higher is more varied.' },
	{ name: 'top_p', label: 'Top p', min: 0.01, max: 1, step: 0.01, help: 'Keep the most likely tokens that together reach this probability.' },
	{ name: 'top_k', label: 'Top k', min: 0, max: 1000, step: 1, whole: true, help: 'Keep this many of the most likely tokens; 0 keeps all.' },
	{ name: 'min_p', label: 'Min p', min: 0, max: 1, step: 0.01, help: 'Drop tokens less likely than this share of the best one.' },
	{ name: 'repetition_penalty', label: 'Repetition penalty', min: 0.1, max: 2, step: 0.05, help: 'Above 1 avoids tokens that were there already.' },
	{ name: 'presence_penalty', label: 'Presence penalty', min: -2, max: 2, step: 0.1, otherwise: 0, help: 'Once for each token that is in the answer.' },
	{ name: 'frequency_penalty', label: 'Frequency penalty', min: -2, max: 2, step: 0.1, otherwise: 0, help: 'For each time a token is in the answer.' },
	{ name: 'max_tokens', label: 'Max tokens', min: 1, max: 1_000_000, step: 1, whole: true, otherwise: 'no limit', help: 'Longest answer; empty goes on to the end of the context.' },
	{ name: 'seed', label: 'Seed', min: -(2 ** 53) + 1, max: 2 ** 53 - 1, step: 1, whole: true, otherwise: 'random', help: 'The same seed gives the same answer again.' },
];

const BUILT_IN_PRESETS = {
	'Server defaults': {},
	Precise: { temperature: 0 },
	Balanced: { temperature: 0.7, top_p: 0.95, min_p: 0.05 },
	Creative: { temperature: 1.1, min_p: 0.05, repetition_penalty: 1.05 },
};

const DEFAULTS = { system: '', stop: '', stream: true, probabilities: false, values: {}, presets: {} };

/** What a field says about a text that was typed: `{ value }`, null for an empty one, or `{ problem }`. */
export function parseField(field, text) {
	if (text.trim() === '') return { value: null };
	const value = Number(field.whole ? text : text.replace(',', '.'));
	if (!Number.isFinite(value)) return { problem: 'This is not a number.' };
	if (field.whole && !Number.isInteger(value)) return { problem: 'This must be a whole number.' };
	if (value < field.min || value > field.max) return { problem: `This must be from ${field.min} to ${field.max}.` };
	return { value };
}

/** The texts that end an answer, one a line; \n and \t can be written so. */
const stopTexts = (text) =>
	text.split('\n').filter(Boolean).map((line) => line.replaceAll('\\n', '\n').replaceAll('\\t', '\t')).slice(0, 16);

export class Settings extends EventTarget {
	#state = { ...DEFAULTS };
	#key = '';

	constructor() {
		super();
		this.#state = { ...DEFAULTS, ...checked(read(KEY)) };
		this.#key = String(read(KEY_OF_KEY, ''));
		this.keepKey = this.#key !== '';
	}

	get key() {
		return this.#key;
	}

	get all() {
		return this.#state;
	}

	change(some) {
		this.#state = { ...this.#state, ...some };
		write(KEY, this.#state);
		this.dispatchEvent(new Event('change'));
	}

	setValue(name, value) {
		const { [name]: _, ...values } = this.#state.values;
		this.change({ values: value === null ? values : { ...values, [name]: value } });
	}

	/** The key stays in memory, unless the person wants it kept. */
	setKey(key, keep) {
		this.#key = key;
		this.keepKey = keep && key !== '';
		write(KEY_OF_KEY, this.keepKey ? key : null);
		this.dispatchEvent(new Event('key'));
	}

	presets() {
		return { ...BUILT_IN_PRESETS, ...this.#state.presets };
	}

	/** The preset that is in force, or ''. */
	presetName() {
		const same = (values) => JSON.stringify(sorted(values)) === JSON.stringify(sorted(this.#state.values));
		return Object.entries(this.presets()).findLast(([, values]) => same(values))?.[0] ?? '';
	}

	/**
	 * The messages of a request: what the system is told, then a path through the conversation. Answers that never
	 * came are left out, and questions without an answer become one, as templates want turns to alternate.
	 */
	messagesFor(path) {
		const messages = this.#state.system.trim() ? [{ role: 'system', content: this.#state.system }] : [];
		for (const { role, content } of path) {
			const last = messages.at(-1);
			if (role === 'user' && last?.role === 'user') last.content += `\n\n${content}`;
			else if (content) messages.push({ role, content });
		}
		return messages;
	}

	/** The body of a chat request. `continues` goes on with the last message. */
	bodyFor(path, { continues = false } = {}) {
		const { values, stop, stream, probabilities } = this.#state;
		const body = { messages: this.messagesFor(path), ...values, stream };
		if (stream) body.stream_options = { include_usage: true, continuous_usage_stats: true };
		if (stopTexts(stop).length) body.stop = stopTexts(stop);
		if (probabilities) Object.assign(body, { logprobs: true, top_logprobs: 5 });
		if (continues) Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
		return body;
	}
}

const sorted = (values) => Object.entries(values).sort(([a], [b]) => (a < b ? -1 : 1));

function read(key, otherwise = {}) {
	try {
		return JSON.parse(localStorage.getItem(key)) ?? otherwise;
	} catch {
		return otherwise;
	}
}

function write(key, value) {
	try {
		if (value === null) localStorage.removeItem(key);
		else localStorage.setItem(key, JSON.stringify(value));
	} catch {
		// Storage is full or not allowed: the choice holds until the page is closed.
	}
}

/** Keeps of what was stored only what has the right form. */
function checked(stored) {
	const state = {};
	if (typeof stored.system === 'string') state.system = stored.system;
	if (typeof stored.stop === 'string') state.stop = stored.stop;
	for (const name of ['stream', 'probabilities']) if (typeof stored[name] === 'boolean') state[name] = stored[name];
	if (isRecord(stored.values)) state.values = checkedValues(stored.values);
	if (isRecord(stored.presets)) {
		const entries = Object.entries(stored.presets).filter(([, values]) => isRecord(values));
		state.presets = Object.fromEntries(entries.map(([name, values]) => [name, checkedValues(values)]));
	}
	return state;
}

export const isRecord = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

function checkedValues(values) {
	const fits = (field) => typeof values[field.name] === 'number' && parseField(field, String(values[field.name])).problem === undefined;
	return Object.fromEntries(FIELDS.filter(fits).map((field) => [field.name, values[field.name]]));
}
