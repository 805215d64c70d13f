/** How full the context is. */

import { byId, el } from './dom.js';
import { count } from './format.js';

export class Meters {
	constructor() {
		this.bar = el('span.bar');
		this.track = el('span.bar-track', { role: 'meter', 'aria-label': 'Context used', 'aria-valuemin': '0' }, this.bar);
		this.context = el('span');
		byId('meters').append(el('span.context', this.track, this.context));
	}

	/** `path` is what is shown, `limit` the model's length or null. */
	show(path, limit) {
		const used = path.findLast((message) => message.usage)?.usage.total ?? 0;
		const told = `${used || !path.length ? count(used) : '–'} of ${count(limit)} tokens`;
		this.track.parentElement.hidden = !limit;
		if (!limit) return;
		const share = Math.min(1, used / limit);
		this.bar.style.inlineSize = `${100 * share}%`;
		this.track.classList.toggle('nearly-full', share > 0.85);
		Object.assign(this.track, { ariaValueMax: limit, ariaValueNow: Math.min(used, limit), ariaValueText: told });
		this.context.textContent = `${told} of context`;
	}
}
