/** The engine at work: numbers, and the last minute as a small chart. Asks only while it is looked at. */

import { el, svg } from './dom.js';
import { describe } from './failures.js';
import { count, percent, rate } from './format.js';
import { hitShare, rateBetween, sampleOf } from './metrics.js';

const EVERY = 1000;
const KEPT = 61;
const WIDTH = 300;
const HEIGHT = 72;

export class EngineView {
	#samples = [];
	#timer = 0;

	constructor(app) {
		this.app = app;
		this.note = el('p.help');
		this.facts = el('dl.facts');
		this.line = svg('polyline', { class: 'chart-line', points: '', 'vector-effect': 'non-scaling-stroke' });
		this.area = svg('polygon', { class: 'chart-area', points: '' });
		this.chart = svg('svg', { class: 'chart', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', preserveAspectRatio: 'none', 'aria-label': 'Tokens a second' }, this.area, this.line);
		this.now = el('span.chart-now', '–');
		this.peak = el('span.help');
		this.about = el('dl.facts');
		this.element = el('div.engine',
			this.note,
			el('div.chart-head', el('span', this.now, ' tokens/s'), this.peak),
			this.chart,
			el('p.chart-foot.help', el('span', 'a minute ago'), el('span', 'now')),
			this.facts,
			el('h2', 'Model'),
			this.about,
		);
	}

	shown() {
		this.#showAbout();
		if (!this.#timer) this.#ask();
	}

	hidden() {
		clearTimeout(this.#timer);
		this.#timer = 0;
	}

	async #ask() {
		this.#timer = setTimeout(() => this.#ask(), EVERY);
		if (document.hidden) return;
		try {
			this.#samples.push(sampleOf(await this.app.api.metrics(), performance.now()));
			this.#samples = this.#samples.slice(-KEPT);
			this.note.textContent = '';
			this.#show();
		} catch (error) {
			this.note.textContent = error.failure ? describe(error.failure).title : String(error);
		}
	}

	#show() {
		const samples = this.#samples;
		const last = samples.at(-1);
		const rates = samples.slice(1).map((sample, index) => rateBetween(samples[index], sample));
		const hits = hitShare(samples[0], last);
		const top = Math.max(1, ...rates);
		const points = rates.map((value, index) => {
			const x = WIDTH - (rates.length - 1 - index) * (WIDTH / (KEPT - 2));
			return `${x.toFixed(1)},${(HEIGHT - 2 - (HEIGHT - 6) * (value / top)).toFixed(1)}`;
		});
		this.line.setAttribute('points', points.join(' '));
		this.area.setAttribute('points', points.length ? `${points[0].split(',')[0]},${HEIGHT} ${points.join(' ')} ${WIDTH},${HEIGHT}` : '');
		const now = rates.length ? rates.at(-1) : 0;
		this.now.textContent = rate(now);
		this.peak.textContent = rates.length ? `most ${rate(Math.max(...rates))}` : '';
		this.chart.setAttribute('aria-label', `Tokens a second over the last minute: now ${rate(now)}, most ${rate(Math.max(0, ...rates))}`);
		this.facts.replaceChildren(...facts([
			['Running', count(last.running)],
			['Waiting', count(last.waiting)],
			['KV cache in use', percent(last.kv)],
			['Prompt tokens from the prefix cache, last minute', hits === null ? '–' : percent(hits)],
			['Preemptions', count(last.preemptions)],
			['Tokens generated since the start', count(last.generated)],
		]));
	}

	#showAbout() {
		const { props } = this.app.server;
		const rows = props && [
			['Name', props.model],
			['Architecture', props.architecture],
			['Runs on', `${props.device}, ${props.dtype}`],
			['Context', `${count(props.max_model_len)} tokens`],
			['KV blocks', `${count(props.num_kv_blocks)} × ${props.block_size} tokens`],
			['Server', `tinyllm ${props.version}`],
		];
		this.about.replaceChildren(...facts(rows ?? []));
	}
}

const facts = (rows) => rows.filter(([, value]) => value).map(([name, value]) => el('div', el('dt', name), el('dd', value)));
