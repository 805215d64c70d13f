/** A Markdown text that grows on the page. Blocks that are complete are never looked at again. */

import { patch } from './build.js';
import { Memo, linesOf, parseMarkdown } from './parse.js';
import { splitBlocks } from './split.js';

export class MarkdownView {
	#source = '';
	#settled = 0; // characters whose blocks can no longer change
	#settledNodes = 0;
	#nodes = [];
	#memo = new Memo();

	constructor(root) {
		this.root = root;
	}

	/** Shows `source`. `open` says that more of it may come. */
	update(source, open = false) {
		if (!source.startsWith(this.#source)) this.#reset();
		this.#source = source;
		const tail = source.slice(this.#settled);
		const nodes = parseMarkdown(tail, open, this.#memo);
		this.#memo.nextRound();
		patch(this.root, this.#nodes, nodes, this.#settledNodes);
		this.#nodes = nodes;
		this.#settle(tail);
	}

	#reset() {
		this.root.replaceChildren();
		this.#settled = this.#settledNodes = 0;
		this.#nodes = [];
	}

	/** Lets go of all blocks but the last of the complete lines. */
	#settle(tail) {
		const complete = tail.slice(0, tail.lastIndexOf('\n') + 1);
		if (this.#nodes.length < 2 || complete.includes('\r')) return;
		const lines = linesOf(complete);
		const blocks = splitBlocks(lines);
		if (blocks.length < 2) return;
		this.#settled += startOf(complete, blocks.at(-1).start);
		this.#settledNodes += blocks.length - 1;
		this.#nodes = this.#nodes.slice(blocks.length - 1);
	}
}

/** Where the `line`th line begins. */
function startOf(text, line) {
	let at = 0;
	for (let count = 0; count < line; count += 1) at = text.indexOf('\n', at) + 1;
	return at;
}
