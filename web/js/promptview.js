/** What the model saw: the exact text of a prompt, its special tokens marked. */

import { copyFrom, el, iconButton } from './dom.js';
import { describe } from './failures.js';
import { count } from './format.js';

export class PromptView {
	#rendered = null;
	#asked = 0;

	constructor(app) {
		this.app = app;
		this.summary = el('p.help');
		this.copy = iconButton('copy', 'Copy the prompt', () => copyFrom(this.copy, this.#rendered.prompt), { hidden: true });
		this.text = el('pre.prompt', { tabindex: '0', dir: 'auto', 'aria-label': 'Prompt', role: 'group' });
		this.element = el('div', el('div.prompt-head', this.summary, this.copy), this.text);
	}

	shown() {
		if (!this.#asked) this.show(this.app.promptOfNow());
	}

	hidden() {
		this.#asked = 0;
	}

	async show(body) {
		const asked = (this.#asked = performance.now());
		this.summary.textContent = 'Asking the server…';
		this.text.replaceChildren();
		this.copy.hidden = true;
		if (!body) {
			this.summary.textContent = 'Write a message first. Then this shows the exact text that the model reads, with the special tokens of its chat template.';
			return;
		}
		try {
			const rendered = await this.app.api.render(body);
			if (asked !== this.#asked) return;
			this.#rendered = rendered;
			this.#show();
		} catch (error) {
			if (asked !== this.#asked) return;
			const { title, text } = error.failure ? describe(error.failure) : { title: 'This failed', text: '' };
			this.summary.textContent = `${title}. ${text}`;
		}
	}

	#show() {
		const { count: total, max_model_len: limit, tokens } = this.#rendered;
		this.summary.textContent = `${count(total)} tokens of at most ${count(limit)}. This is all that the model reads.`;
		this.copy.hidden = false;
		const shown = new DocumentFragment(); // there may be hundreds of thousands
		for (const { text, special } of tokens) shown.append(special ? el('mark.special', text) : text);
		shown.normalize();
		this.text.append(shown);
	}
}
