/** How full the context is, and how fast the answer comes. */

import { byId, el } from './dom.js';
import { count, duration, rate } from './format.js';

export class Meters {
	constructor() {
		this.bar = el('span.bar');
		this.track = el('span.bar-track', { role: 'meter', 'aria-label': 'Context used', 'aria-valuemin': '0' }, this.bar);
		this.context = el('span');
		this.speed = el('span.speed');
		this.element = byId('meters');
		this.element.append(el('span.context', this.track, this.context), this.speed);
	}

	/** `path` is what is shown, `run` the answer under way or null, `limit` the model's length or null. */
	show(path, run, limit) {
		const usage = path.findLast((message) => message.usage)?.usage;
		this.#showContext(usage?.total ?? 0, limit);
		this.speed.textContent = run ? runText(run) : '';
	}

	#showContext(used, limit) {
		this.track.parentElement.hidden = !limit;
		if (!limit) return;
		const share = Math.min(1, used / limit);
		this.bar.style.inlineSize = `${100 * share}%`;
		this.track.classList.toggle('nearly-full', share > 0.85);
		this.track.setAttribute('aria-valuemax', String(limit));
		this.track.setAttribute('aria-valuenow', String(Math.min(used, limit)));
		this.track.setAttribute('aria-valuetext', `${count(used)} of ${count(limit)} tokens`);
		this.context.textContent = `${count(used)} of ${count(limit)} tokens of context`;
	}
}

function runText(run) {
	const parts = [];
	if (run.currentRate !== null) parts.push(`${rate(run.currentRate)} tokens/s`);
	if (run.firstAt !== null) parts.push(`first after ${duration(run.firstAt - run.started)}`);
	return parts.join(' · ');
}
