/** Blocks to nodes. `open` is true while the text grows; it only ever matters for the last block. */

import { highlightLine } from '../highlight.js';
import { parseInline } from './inline.js';
import { node } from './nodes.js';
import { cellsOf, isBlank, splitBlocks } from './split.js';

const DEEPEST = 12;
const AUTO = { dir: 'auto' };

/**
 * Remembers what was made of a text, so that what has not changed is the same object as before and need not be
 * looked at again. Holds what the last two rounds used.
 */
export class Memo {
	#last = new Map();
	#now = new Map();

	get(key, make) {
		let value = this.#now.get(key) ?? this.#last.get(key);
		if (value === undefined) value = make();
		this.#now.set(key, value);
		return value;
	}

	nextRound() {
		this.#last = this.#now;
		this.#now = new Map();
	}
}

/** Returns the nodes of a Markdown text. */
export function parseMarkdown(text, open = false, memo = new Memo()) {
	return parseLines(linesOf(text), open, memo, 0);
}

/** Lines of a text. Tabs before a list item count four columns; elsewhere, as in code, they stay. */
export const linesOf = (text) =>
	text
		.split(/\r\n|\r|\n/)
		.map((line) => (/^ *\t\s*(?:[-*+]|\d{1,9}[.)]) /.test(line) ? line.replace(/^\s+/, (tabs) => tabs.replaceAll('\t', '    ')) : line));

function parseLines(lines, open, memo, depth) {
	const blocks = splitBlocks(lines);
	return blocks.map((block, index) => {
		const last = open && index === blocks.length - 1 && lines.slice(block.end).every(isBlank);
		return MAKE[block.kind](block, last, memo, depth);
	});
}

const inline = (text, open, memo) => memo.get(`i${open}${text}`, () => parseInline(text, { open }));

const MAKE = {
	paragraph(block, open, memo) {
		if (open && /^\|/.test(block.text)) return pendingTable(block, memo);
		return node('p', inline(block.text.trimEnd(), open, memo), AUTO);
	},
	heading(block, open, memo) {
		// The page has levels 1 and 2 itself.
		const level = Math.min(block.level + 2, 6);
		return node(`h${level}`, inline(block.text, open, memo), AUTO);
	},
	rule: () => node('hr'),
	quote(block, open, memo, depth) {
		return node('blockquote', nested(block.body, open, memo, depth), AUTO);
	},
	list(block, open, memo, depth) {
		const items = block.items.map((lines, index) => {
			const last = open && index === block.items.length - 1;
			return node('li', unwrapped(nested(lines, last, memo, depth)), AUTO);
		});
		if (!block.ordered) return node('ul', items, AUTO);
		return node('ol', items, block.first === 1 ? AUTO : { ...AUTO, start: String(block.first) });
	},
	table(block, open, memo) {
		const cell = (tag) => (text, column) => {
			const align = block.align[column];
			const attrs = align ? { ...AUTO, class: `align-${align}` } : AUTO;
			return node(tag, inline(text, false, memo), tag === 'th' ? { ...attrs, scope: 'col' } : attrs);
		};
		const width = block.head.length;
		const head = node('thead', [node('tr', block.head.map(cell('th')))]);
		const rows = block.rows.map((cells) =>
			memo.get(`r${block.align}${cells.join('|')}`, () => node('tr', cells.slice(0, width).map(cell('td')))),
		);
		const body = rows.length ? [node('tbody', rows)] : [];
		const attrs = { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table' };
		return node('div', [node('table', [head, ...body])], attrs);
	},
	code(block, open, memo) {
		const language = block.info.trim().split(/[\s{,]/)[0].slice(0, 20);
		const label = language || 'text';
		let state = '';
		const lines = block.body.map((text) => {
			const line = memo.get(`c${language}\n${state}\n${text}`, () => codeLine(language, state, text));
			state = line.state;
			return line.node;
		});
		return node('figure', [
			node('figcaption', [node('span', [label]), node('button', ['Copy'], { type: 'button', class: 'copy-code' })]),
			node('pre', [node('code', lines)], { tabindex: '0', dir: 'ltr', 'aria-label': `Code, ${label}`, role: 'group' }),
		], { class: 'code' });
	},
};

function nested(lines, open, memo, depth) {
	if (depth >= DEEPEST) return [node('p', [lines.join('\n')], AUTO)];
	return parseLines(lines, open, memo, depth + 1);
}

/** An item's own text is not a paragraph in it: lists look the same whether blank lines come or not. */
function unwrapped(nodes) {
	if (nodes[0]?.tag !== 'p' || nodes.filter((one) => one.tag === 'p').length > 1) return nodes;
	return nodes.length === 1 ? nodes[0].children : [...nodes[0].children, ...nodes.slice(1)];
}

/** A table whose second line is still to come: shown as a table from its first bar on. */
function pendingTable(block, memo) {
	const head = cellsOf(block.text.split('\n', 1)[0]);
	return MAKE.table({ align: [], head, rows: [] }, false, memo);
}

function codeLine(language, state, text) {
	const { tokens, state: next } = highlightLine(language, state, text);
	const parts = tokens.map(([kind, part]) => (kind ? node('span', [part], { class: `t-${kind}` }) : part));
	return { node: node('span', [...parts, '\n'], { class: 'line' }), state: next };
}
