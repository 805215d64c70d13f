/**
 * Light syntax colouring, a line at a time: `highlightLine(language, state, line)` gives tokens and the state
 * that the next line begins in, so a block that grows is never read twice.
 */

const words = (text) => new Set(text.split(' '));

/** Of all languages with braces together: a word that is one in another of them is rarely used for a name. */
const BRACES =
	'async auto await bool break case catch char class const continue default defer delete do double else enum export ' +
	'extends extern false final finally float fn for from func function go if impl implements import in instanceof int ' +
	'interface let long loop match mod mut namespace new nil null nullptr of override package private protected pub public ' +
	'return self Self static struct super switch template this throw throws trait true try type typedef typeof undefined ' +
	'unsafe unsigned use using val var virtual void where while yield';
const PYTHON =
	'and as assert async await break case class continue def del elif else except False finally for from global if ' +
	'import in is lambda match None nonlocal not or pass raise return True try while with yield self';
const SQL =
	'alter and as asc between by case count create delete desc distinct drop else end exists foreign from group having ' +
	'in index inner insert into is join key left like limit not null on or order outer primary references right select ' +
	'set table then union unique update values view when where with';
const SHELL = 'case do done elif else esac exit export fi for function if in local return set then unset while cd echo';

const STRING = String.raw`"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?`;
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*`;
const WORD = String.raw`[A-Za-z_$][\w$]*`;

/** Ways to begin something that may go on over lines: what begins it, what ends it, and its kind. */
const BLOCK_COMMENT = ['/*', '*/', 'comment'];

function language({ keywords = '', comment = '', strings = STRING, spans = [], fold = false, extra = '' }) {
	const escape = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
	const parts = [
		['span', spans.map(([open]) => escape(open)).join('|')],
		['comment', comment && `(?:${comment}).*`],
		['string', strings],
		['meta', extra],
		['number', NUMBER],
		['word', WORD],
	].filter(([, pattern]) => pattern);
	const pattern = parts.map(([name, source]) => `(?<${name}>${source})`).join('|');
	return { pattern: new RegExp(pattern, 'g'), spans, keywords: words(keywords), fold };
}

const BACKTICKS = ['`', '`', 'string'];
const LANGUAGES = {
	c: language({ comment: '//', keywords: BRACES, spans: [BLOCK_COMMENT], extra: String.raw`^\s*#\w+|@\w+` }),
	js: language({ comment: '//', keywords: BRACES, spans: [BLOCK_COMMENT, BACKTICKS] }),
	rust: language({ comment: '//', keywords: BRACES, spans: [BLOCK_COMMENT], strings: String.raw`"(?:\\.|[^"\\])*"?`, extra: String.raw`#!?\[[^\]]*\]|\b\w+!` }),
	python: language({
		keywords: PYTHON,
		comment: '#',
		spans: [['"""', '"""', 'string'], ["'''", "'''", 'string']],
		extra: String.raw`^\s*@[\w.]+`,
	}),
	sql: language({ keywords: SQL, comment: '--', spans: [BLOCK_COMMENT], fold: true }),
	sh: language({ keywords: SHELL, comment: '(?<![^\\s])#', extra: String.raw`\$\w+|\$\{[^}]*\}|(?<=\s)--?[A-Za-z][\w-]*` }),
	css: language({ spans: [BLOCK_COMMENT], extra: String.raw`[@#.][A-Za-z][\w-]*|[\w-]+(?=\s*:)` }),
	yaml: language({ keywords: 'true false null yes no', comment: '#', extra: String.raw`^\s*(?:- )*[\w.-]+(?=:)|^\[[^\]]*\]` }),
	html: language({ spans: [['<!--', '-->', 'comment']], extra: String.raw`</?[A-Za-z][\w-]*|/?>` }),
};
const ALIASES = {
	js: 'javascript jsx ts tsx typescript mjs json go golang',
	python: 'py python3',
	c: 'cpp c++ cc h hpp java kotlin kt cs csharp swift scala dart',
	rust: 'rs',
	sh: 'bash shell zsh console',
	yaml: 'yml toml ini',
	html: 'xml svg vue',
	css: 'scss',
	sql: 'sqlite postgresql mysql',
};
const NAMES = new Map(Object.keys(LANGUAGES).map((name) => [name, name]));
for (const [name, others] of Object.entries(ALIASES)) for (const other of others.split(' ')) NAMES.set(other, name);

/** Longer lines are shown plain: nobody reads them, and colouring them would cost. */
const LONGEST_LINE = 2000;

/**
 * Returns `{ tokens: [[kind, text]], state }`; kind is '' for plain text. The tokens join to the line.
 * `state` is '' at the beginning and outside of anything that goes on over lines.
 */
export function highlightLine(name, state, line) {
	const wanted = name.toLowerCase();
	if (wanted === 'diff' || wanted === 'patch') return { tokens: [[diffKind(line), line]], state: '' };
	const known = LANGUAGES[NAMES.get(wanted)];
	if (!known || line.length > LONGEST_LINE) return { tokens: line ? [['', line]] : [], state };
	return scan(known, state, line);
}

function scan(known, state, line) {
	const tokens = [];
	const add = (kind, text) => {
		if (!text) return;
		if (tokens.length && tokens.at(-1)[0] === kind) tokens.at(-1)[1] += text;
		else tokens.push([kind, text]);
	};
	let at = 0;
	let inside = known.spans.find(([open]) => open === state);
	const { pattern } = known;
	for (;;) {
		if (inside) {
			const [open, close, kind] = inside;
			const end = line.indexOf(close, at);
			if (end < 0) {
				add(kind, line.slice(at));
				return { tokens, state: open };
			}
			add(kind, line.slice(at, end + close.length));
			at = end + close.length;
			inside = undefined;
		}
		pattern.lastIndex = at;
		const found = pattern.exec(line);
		if (!found) break;
		add('', line.slice(at, found.index));
		at = pattern.lastIndex;
		const kind = kindOf(known, found.groups, line, at);
		if (kind === 'span') {
			const [open] = (inside = known.spans.find(([begin]) => begin === found[0]));
			add(inside[2], open);
		} else add(kind, found[0]);
	}
	add('', line.slice(at));
	return { tokens, state: '' };
}

function kindOf(known, groups, line, end) {
	if (!groups.word) return Object.keys(groups).find((kind) => groups[kind]);
	const word = known.fold ? groups.word.toLowerCase() : groups.word;
	if (known.keywords.has(word)) return 'keyword';
	return line[end] === '(' ? 'call' : '';
}

function diffKind(line) {
	if (/^(@@|diff |index |\+\+\+|---)/.test(line)) return 'meta';
	return line.startsWith('+') ? 'added' : line.startsWith('-') ? 'removed' : '';
}
