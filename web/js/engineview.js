/** The engine at work: numbers, and the last minute as a chart. Asks seldom while nobody looks. */

import { el, svg } from './dom.js';
import { describe } from './failures.js';
import { count, percent, rate } from './format.js';
import { hitShare, rateBetween, sampleOf } from './metrics.js';

const MINUTE = 60_000;
const OFTEN = 1000;
const SELDOM = 5000;
const WIDTH = 300;
const HEIGHT = 72;

export class EngineView {
	#samples = [];
	#timer = 0;
	#isSeen = () => this.element.offsetParent;

	constructor(app) {
		this.app = app;
		this.note = el('p.help');
		this.facts = el('dl.facts');
		this.line = svg('path', { class: 'chart-line', 'vector-effect': 'non-scaling-stroke' });
		this.chart = svg('svg', { class: 'chart', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', preserveAspectRatio: 'none', 'aria-label': 'Tokens a second' }, this.line);
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
		app.server.addEventListener('change', () => this.#askAfter(0));
	}

	shown() {
		this.#showAbout();
		const last = this.#samples.at(-1);
		this.#askAfter(last ? last.at + OFTEN - performance.now() : 0);
	}

	#askAfter(delay) {
		clearTimeout(this.#timer);
		this.#timer = setTimeout(() => this.#ask(), delay);
	}

	async #ask() {
		try {
			if (document.hidden || !(this.#isSeen() || this.app.server.state === 'ready')) return;
			const now = performance.now();
			this.#samples.push(sampleOf(await this.app.api.metrics(), now));
			this.#samples = this.#samples.filter(({ at }) => now - at < MINUTE + SELDOM);
			this.note.textContent = '';
			this.#show();
		} catch (error) {
			this.note.textContent = error.failure ? describe(error.failure).title : String(error);
		} finally {
			this.#askAfter(this.#isSeen() ? OFTEN : SELDOM);
		}
	}

	#show() {
		const samples = this.#samples;
		const last = samples.at(-1);
		const rates = samples.slice(1).map((sample, index) => rateBetween(samples[index], sample));
		const hits = hitShare(samples[0], last);
		const top = Math.max(1, ...rates);
		const x = ({ at }) => (WIDTH * (1 - (last.at - at) / MINUTE)).toFixed(1);
		const steps = rates.map((value, index) => `V${(HEIGHT - 2 - (HEIGHT - 6) * (value / top)).toFixed(1)}H${x(samples[index + 1])}`);
		this.line.setAttribute('d', `M${x(samples[0])},99${steps.join('')}h9V99`); // its ends are out of sight
		const now = rates.length ? rates.at(-1) : 0;
		this.now.textContent = rate(now);
		this.peak.textContent = rates.length ? `most ${rate(Math.max(...rates))}` : '';
		this.chart.setAttribute('aria-label', `Tokens a second over the last minute: now ${rate(now)}, most ${rate(Math.max(0, ...rates))}`);
		this.facts.replaceChildren(...facts([
			['Running', count(last.running)],
			['Waiting', count(last.waiting)],
			['KV cache in use', percent(last.kv)],
			['From the prefix cache, last minute', hits === null ? '–' : percent(hits)],
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
