/**
 * Lines to blocks. Each block is `{ kind, start, end, ... }` in lines. What a line begins or ends depends only on
 * the lines before it and, for a table, the next one: so when lines are added, only the last block can change.
 */

const FENCE = /^( {0,3})(`{3,}|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?![^ \t])/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*))?$/s;
const DELIMITER = /^:?-+:?$/;

export function splitBlocks(lines) {
	const blocks = [];
	let at = 0;
	while (at < lines.length) {
		if (isBlank(lines[at])) {
			at += 1;
			continue;
		}
		const block = readBlock(lines, at);
		blocks.push(block);
		at = block.end;
	}
	return blocks;
}

function readBlock(lines, at) {
	const line = lines[at];
	const fence = FENCE.exec(line);
	if (fence) return readFence(lines, at, fence);
	const heading = HEADING.exec(line);
	if (heading) return { kind: 'heading', start: at, end: at + 1, level: heading[1].length, text: headingText(line.slice(heading[0].length)) };
	if (RULE.test(line)) return { kind: 'rule', start: at, end: at + 1 };
	if (QUOTE.test(line)) return readQuote(lines, at);
	const item = ITEM.exec(line);
	if (item) return readList(lines, at, item);
	if (startsTable(lines, at)) return readTable(lines, at);
	return readParagraph(lines, at);
}

const headingText = (text) => text.trimEnd().replace(/(?:^|[ \t])#+$/, '').trim();

export const isBlank = (line) => /^[ \t]*$/.test(line);

const indentOf = (line) => /^ */.exec(line)[0].length;

/** Whether a line ends the paragraph before it. A list that does so must begin with a bullet or with 1. */
function interrupts(lines, at) {
	const line = lines[at];
	if (isBlank(line) || [FENCE, QUOTE, RULE, HEADING].some((sign) => sign.test(line))) return true;
	const item = ITEM.exec(line);
	if (item && item[4] && (!/\d/.test(item[2]) || /^1[.)]$/.test(item[2]))) return true;
	return startsTable(lines, at);
}

function readFence(lines, at, [, indent, mark, info]) {
	const close = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}[ \\t]*$`);
	const body = [];
	let end = at + 1;
	for (; end < lines.length && !close.test(lines[end]); end += 1) {
		body.push(lines[end].slice(Math.min(indentOf(lines[end]), indent.length)));
	}
	return { kind: 'code', start: at, end: end + 1, info, body };
}

function readQuote(lines, at) {
	const body = [];
	let end = at;
	for (; end < lines.length; end += 1) {
		if (QUOTE.test(lines[end])) body.push(lines[end].replace(/^ {0,3}> ?/, ''));
		else if (interrupts(lines, end) || isBlank(body.at(-1))) break;
		else body.push(lines[end]);
	}
	return { kind: 'quote', start: at, end, body };
}

function readList(lines, at, first) {
	const indent = first[1].length;
	const ordered = /\d/.test(first[2]);
	const items = [];
	let end = at;
	let content = 0;
	let next = 0; // where text is again, after blank lines
	for (; end < lines.length; end += 1) {
		const line = lines[end];
		const item = ITEM.exec(line);
		const belongs = items.length && indentOf(line) >= content;
		if (isBlank(line)) {
			while (next < lines.length && (next < end || isBlank(lines[next]))) next += 1;
			if (!goesOn(lines[next], indent, content, ordered)) break;
			items.at(-1).push('');
		} else if (item && !belongs && isSibling(item, indent, ordered) && !RULE.test(line)) {
			content = item[1].length + item[2].length + Math.min(item[3]?.length ?? 1, 4);
			items.push([line.slice(Math.min(content, line.length))]);
		} else if (belongs || indentOf(line) > indent) {
			items.at(-1).push(line.slice(Math.min(indentOf(line), content)));
		} else if (items.at(-1).at(-1) === '' || interrupts(lines, end)) break;
		else items.at(-1).push(line);
	}
	return { kind: 'list', start: at, end, ordered, first: ordered ? parseInt(first[2], 10) : 1, items };
}

const isSibling = (item, indent, ordered) =>
	/\d/.test(item[2]) === ordered && item[1].length >= indent - 1 && item[1].length <= indent + 1;

/** Whether a list goes on after blank lines. */
function goesOn(line, indent, content, ordered) {
	if (line === undefined) return false;
	const item = ITEM.exec(line);
	return indentOf(line) >= Math.max(content, 1) || (item && isSibling(item, indent, ordered) && !RULE.test(line));
}

function startsTable(lines, at) {
	if (!lines[at].includes('|') || at + 1 === lines.length) return false;
	const under = cellsOf(lines[at + 1]);
	return under.every((cell) => DELIMITER.test(cell)) && cellsOf(lines[at]).length === under.length;
}

function readTable(lines, at) {
	let end = at + 2;
	while (end < lines.length && !isBlank(lines[end]) && lines[end].includes('|')) end += 1;
	const align = cellsOf(lines[at + 1]).map(alignment);
	return { kind: 'table', start: at, end, align, head: cellsOf(lines[at]), rows: lines.slice(at + 2, end).map(cellsOf) };
}

function alignment(cell) {
	const [left, right] = [cell.startsWith(':'), cell.endsWith(':')];
	return left && right ? 'center' : right ? 'end' : '';
}

/** The cells of a table's row. A bar inside code or after a backslash does not divide. */
export function cellsOf(line) {
	const inner = line.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '');
	const cells = [''];
	for (const [part] of inner.matchAll(/\\\||`[^`]*`|[^|`\\]+|[\s\S]/g)) {
		if (part === '|') cells.push('');
		else cells[cells.length - 1] += part === '\\|' ? '|' : part;
	}
	return cells.map((cell) => cell.trim());
}

function readParagraph(lines, at) {
	let end = at + 1;
	while (end < lines.length && !interrupts(lines, end)) end += 1;
	return { kind: 'paragraph', start: at, end, text: lines.slice(at, end).map((line) => line.trimStart()).join('\n') };
}
