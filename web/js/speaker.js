/** Reads an answer to those who listen: whole sentences, and not more often than they can be heard. */

import { announce } from './dom.js';

const EVERY = 2500;

export class Speaker {
	#said;
	#at = -Infinity;

	constructor(from) {
		this.#said = from;
	}

	/** Says the sentences that `text` has gained. */
	follow(text, isOver) {
		const now = performance.now();
		if (!isOver && now - this.#at < EVERY) return;
		const rest = text.slice(this.#said);
		const end = isOver ? rest.length : lastSentenceEnd(rest);
		if (end === 0) return;
		announce(rest.slice(0, end).replace(/[`*_#|>]+/g, ' ').slice(-2000));
		this.#said += end;
		this.#at = now;
	}
}

function lastSentenceEnd(text) {
	let end = 0;
	for (const found of text.matchAll(/[.!?。！？](?=\s)|\n/g)) end = found.index + 1;
	return end;
}
