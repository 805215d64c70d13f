/** What the model saw: the exact text of a prompt, its special tokens marked. */

import { copyFrom, el, iconButton } from './dom.js';
import { describe } from './failures.js';
import { count } from './format.js';

/** What special tokens look like in most templates; used where the server does not mark them itself. */
const SPECIAL = /<\|[^|<>\s]{1,40}\|>|<\/?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[\/?INST\]/g;

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
		const { prompt, count: total, max_model_len: limit, tokens } = this.#rendered;
		this.summary.textContent = `${count(total)} tokens of at most ${count(limit)}. This is all that the model reads.`;
		this.copy.hidden = false;
		const parts = tokens ?? splitSpecial(prompt);
		this.text.replaceChildren(...parts.map(({ text, special }) => (special ? el('mark.special', text) : text)));
	}
}

/** A prompt in parts: `{ text, special }`. */
export function splitSpecial(prompt) {
	const parts = [];
	let at = 0;
	for (const { 0: text, index } of prompt.matchAll(SPECIAL)) {
		if (index > at) parts.push({ text: prompt.slice(at, index), special: false });
		parts.push({ text, special: true });
		at = index + text.length;
	}
	if (at < prompt.length) parts.push({ text: prompt.slice(at), special: false });
	return parts;
}
