/** Markdown inside a paragraph: emphasis, code, links. Linear in the text, whatever the text. */

import { safeUrl } from './links.js';
import { node, textOf } from './nodes.js';

const SPECIAL = /\\|`+|\*+|_+|~~|!?\[|<(?=https?:|mailto:)|https?:\/\/|\n/gi;
const DESTINATION = /\(\s{0,9}(<[^<>\n]{0,2048}>|[^\s()<>]{0,2048}(?:\([^\s()]{0,512}\)[^\s()]{0,512}){0,8})(?:\s{1,9}(?:"[^"\n]{0,300}"|'[^'\n]{0,300}'))?\s{0,9}\)/y;
const OPEN_DESTINATION = /\([^)\s]{0,2048}$/y;
const DEEPEST = 8;
const FARTHEST = 5000;

/**
 * Returns the nodes of a text. `open` says that more of it may come: then what is begun and not yet ended is
 * shown as if it ended here, so that nothing flickers when its end arrives.
 */
export function parseInline(text, { open = false, depth = 0, inLink = false } = {}) {
	return new Inline(text, { open, depth, inLink }).parse();
}

class Inline {
	#out = [];
	#run = '';
	#searched = {};
	#brackets;
	#ticks;

	constructor(text, options) {
		this.text = text;
		this.options = options;
	}

	parse() {
		const { text } = this;
		const special = new RegExp(SPECIAL);
		let at = 0;
		for (let found; (found = special.exec(text)); ) {
			this.#run += text.slice(at, found.index);
			const end = this.#special(found[0], found.index);
			if (end < 0) this.#run += found[0];
			at = end < 0 ? special.lastIndex : end;
			special.lastIndex = at;
		}
		this.#run += text.slice(at);
		this.#flush();
		return this.#out;
	}

	#flush() {
		if (this.#run) this.#out.push(this.#run);
		this.#run = '';
	}

	#push(one) {
		this.#flush();
		this.#out.push(one);
	}

	#inner(from, to, options = {}) {
		const { open, depth, inLink } = this.options;
		const text = this.text.slice(from, to);
		if (depth >= DEEPEST) return [text];
		return parseInline(text, { open: open && to >= this.text.length, depth: depth + 1, inLink, ...options });
	}

	/** Reads what begins at `at` with `mark`. Returns where it ends, or -1 if it is plain text. */
	#special(mark, at) {
		switch (mark[0]) {
			case '\\':
				return this.#escape(at);
			case '`':
				return this.#code(mark, at);
			case '*':
			case '_':
			case '~':
				return this.#emphasis(mark, at);
			case '\n':
				return this.#lineBreak(at);
			case '<':
				return this.#autolink(at);
			case '[':
			case '!':
				return this.#link(mark, at);
			default:
				return this.#bareUrl(at);
		}
	}

	#escape(at) {
		const next = this.text[at + 1];
		if (next === '\n') {
			this.#push(node('br'));
			return at + 2;
		}
		if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return -1;
		this.#run += next;
		return at + 2;
	}

	#lineBreak(at) {
		if (!/ {2,}$/.test(this.#run.slice(-8))) return -1;
		this.#run = this.#run.trimEnd();
		this.#push(node('br'));
		return at + 1;
	}

	#code(mark, at) {
		const from = at + mark.length;
		const close = this.#closingTicks(mark.length, from);
		if (close === undefined) {
			if (!this.options.open) return -1;
			if (from < this.text.length) this.#push(node('code', [this.text.slice(from)]));
			return this.text.length;
		}
		let code = this.text.slice(from, close).replaceAll('\n', ' ');
		if (/^ (?! *$).* $/.test(code)) code = code.slice(1, -1);
		this.#push(node('code', [code]));
		return close + mark.length;
	}

	#closingTicks(length, from) {
		if (!this.#ticks) {
			this.#ticks = new Map();
			for (const { 0: run, index } of this.text.matchAll(/`+/g)) {
				if (!this.#ticks.has(run.length)) this.#ticks.set(run.length, { places: [], next: 0 });
				this.#ticks.get(run.length).places.push(index);
			}
		}
		const runs = this.#ticks.get(length);
		while (runs && runs.places[runs.next] < from) runs.next += 1;
		return runs?.places[runs.next];
	}

	#emphasis(mark, at) {
		const { text } = this;
		const sign = mark[0];
		const length = sign === '~' ? 2 : Math.min(mark.length, 3);
		const from = at + mark.length;
		const after = text[from];
		if (after === undefined && this.options.open) return from; // a mark whose text is yet to come
		if (after === undefined || /\s/.test(after)) return -1;
		if (sign === '_' && /[\p{L}\p{N}]/u.test(text[at - 1] ?? '')) return -1;
		if (mark.length > 3) return -1;
		const close = this.#closing(sign, length, from);
		if (close < 0 && !this.options.open) return -1;
		const to = close < 0 ? text.length : close;
		const children = this.#inner(from, close < 0 ? withoutTrailing(text, sign, from) : to);
		this.#push(wrap(sign, length, children));
		return close < 0 ? text.length : close + length;
	}

	/** Where the run begins that closes emphasis; -1 if there is none near. Nothing is searched twice in vain. */
	#closing(sign, length, from) {
		const { text } = this;
		const key = sign + length;
		const pattern = sign === '*' ? /\\.|\*+/gs : sign === '_' ? /\\.|_+/gs : /\\.|~~/gs;
		const limit = from + FARTHEST;
		pattern.lastIndex = Math.max(from, this.#searched[key] ?? 0);
		for (let found; (found = pattern.exec(text)) && found.index < limit; ) {
			const run = found[0];
			if (run[0] !== sign || found.index === from) continue;
			const fits = run.length === length || run.length >= 3 || sign === '~';
			if (!fits || /\s/.test(text[found.index - 1])) continue;
			if (sign === '_' && /[\p{L}\p{N}]/u.test(text[pattern.lastIndex] ?? '')) continue;
			return found.index + Math.max(0, run.length - length);
		}
		this.#searched[key] = Math.min(limit, text.length);
		return -1;
	}

	#link(mark, at) {
		if (this.options.inLink) return -1;
		const from = at + mark.length;
		const close = this.#closingBracket(from - 1);
		if (close === undefined || this.text[close + 1] !== '(') return -1;
		DESTINATION.lastIndex = close + 1;
		const found = DESTINATION.exec(this.text);
		const inner = () => this.#inner(from, close, { inLink: true, open: false });
		if (!found) {
			OPEN_DESTINATION.lastIndex = close + 1;
			if (!this.options.open || !OPEN_DESTINATION.test(this.text)) return -1;
			this.#flush();
			this.#out.push(...inner()); // the address is still arriving
			return this.text.length;
		}
		const url = safeUrl(found[1].replace(/^<|>$/g, ''));
		if (url === null) return -1;
		const label = inner();
		this.#push(link(url, textOf(label).trim() ? label : [url]));
		return DESTINATION.lastIndex;
	}

	#closingBracket(at) {
		if (!this.#brackets) {
			this.#brackets = new Map();
			const opened = [];
			for (const { 0: sign, index } of this.text.matchAll(/\\.|[[\]]/gs)) {
				if (sign === '[') opened.push(index);
				else if (sign === ']' && opened.length) this.#brackets.set(opened.pop(), index);
			}
		}
		return this.#brackets.get(at);
	}

	#autolink(at) {
		const [raw, close] = this.text.slice(at + 1, at + 2050).split('>', 2);
		const url = close === undefined || this.options.inLink ? null : safeUrl(raw);
		if (url === null) return -1;
		this.#push(link(url, [raw]));
		return at + raw.length + 2;
	}

	#bareUrl(at) {
		if (this.options.inLink || /[\p{L}\p{N}]/u.test(this.text[at - 1] ?? '')) return -1;
		const pattern = /[^\s<>"'`*|]{1,2048}/y;
		pattern.lastIndex = at;
		let raw = pattern.exec(this.text)[0].replace(/[.,;:!?\]]+$/, '');
		if (raw.endsWith(')') && !raw.includes('(')) raw = raw.slice(0, -1);
		const url = /^https?:\/\/./i.test(raw) ? safeUrl(raw) : null;
		if (url === null) return -1;
		this.#push(link(url, [raw]));
		return at + raw.length;
	}
}

/** Half of a closing mark is not shown before the other half comes. */
function withoutTrailing(text, sign, from) {
	return text.endsWith(sign) && text.length - 1 > from ? text.length - 1 : text.length;
}

function wrap(sign, length, children) {
	if (sign === '~') return node('del', children);
	if (length === 3) return node('strong', [node('em', children)]);
	return node(length === 2 ? 'strong' : 'em', children);
}

function link(href, children) {
	return node('a', children, { href, target: '_blank', rel: 'noopener noreferrer nofollow' });
}
