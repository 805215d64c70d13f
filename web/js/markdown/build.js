/**
 * Nodes to the page, through an allow-list: what is not on it does not become an element, and there is no way
 * from text to markup but this. `patch` changes only what differs, so that text grows without a flicker.
 */

const COMMON = { dir: /^(auto|ltr)$/ };
const CLASS = { class: /^(t-[a-z]+|line|code|copy-code|table|align-(center|end))$/ };
const SCROLLS = { tabindex: /^0$/, role: /^(region|group)$/, 'aria-label': /^(Table|Code, .{1,24})$/s };

/** Which elements there may be, with which attributes of which form. */
export const ALLOWED = {
	p: COMMON,
	h3: COMMON,
	h4: COMMON,
	h5: COMMON,
	h6: COMMON,
	hr: {},
	br: {},
	blockquote: COMMON,
	ul: COMMON,
	ol: { ...COMMON, start: /^\d{1,9}$/ },
	li: COMMON,
	div: { ...CLASS, ...SCROLLS },
	table: {},
	thead: {},
	tbody: {},
	tr: {},
	th: { ...COMMON, ...CLASS, scope: /^col$/ },
	td: { ...COMMON, ...CLASS },
	figure: CLASS,
	figcaption: {},
	pre: { ...COMMON, ...SCROLLS },
	code: {},
	span: CLASS,
	button: { ...CLASS, type: /^button$/ },
	strong: {},
	em: {},
	del: {},
	a: { href: /^(https?:\/\/|mailto:)/, target: /^_blank$/, rel: /^noopener noreferrer nofollow$/ },
};

export function build(one, doc = document) {
	if (typeof one === 'string') return doc.createTextNode(one);
	const attributes = Object.hasOwn(ALLOWED, one.tag) ? ALLOWED[one.tag] : null;
	if (attributes === null) throw new TypeError('this element is not on the allow-list');
	const element = doc.createElement(one.tag);
	for (const [name, value] of Object.entries(one.attrs)) {
		if (!Object.hasOwn(attributes, name) || !attributes[name].test(value)) {
			throw new TypeError('this attribute is not on the allow-list');
		}
		element.setAttribute(name, value);
	}
	for (const child of one.children) element.appendChild(build(child, doc));
	return element;
}

/** Makes the children of `parent`, from the `offset`th on, which show `before`, show `after`. */
export function patch(parent, before, after, offset = 0, doc = document) {
	if (before === after) return;
	const shared = Math.min(before.length, after.length);
	for (let index = 0; index < shared; index += 1) {
		if (before[index] !== after[index]) change(parent, offset + index, before[index], after[index], doc);
	}
	for (let index = before.length; index > shared; index -= 1) parent.removeChild(parent.childNodes[offset + index - 1]);
	const next = parent.childNodes[offset + shared] ?? null;
	for (const one of after.slice(shared)) parent.insertBefore(build(one, doc), next);
}

function change(parent, index, before, after, doc) {
	const shown = parent.childNodes[index];
	if (typeof before === 'string' && typeof after === 'string') {
		if (after.startsWith(before)) shown.appendData(after.slice(before.length));
		else shown.data = after;
	} else if (isSameElement(before, after)) {
		patch(shown, before.children, after.children, 0, doc);
	} else {
		parent.replaceChild(build(after, doc), shown);
	}
}

function isSameElement(before, after) {
	if (typeof before === 'string' || before.tag !== after.tag) return false;
	if (before.attrs === after.attrs) return true;
	const names = Object.keys(before.attrs);
	return names.length === Object.keys(after.attrs).length && names.every((name) => before.attrs[name] === after.attrs[name]);
}
