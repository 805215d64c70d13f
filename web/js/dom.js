/** Elements, icons and small services of the browser. Text only ever becomes text. */

const SVG = 'http://www.w3.org/2000/svg';

/**
 * Makes an element, as in `el('p.note', { onclick, hidden: true }, 'text', child)`. Of its properties, which may be
 * left out, a function is a listener, true and false are attributes that are there or not, and null is nothing.
 */
export function el(kind, ...rest) {
	const [tag, ...classes] = kind.split('.');
	const element = document.createElement(tag);
	if (tag === 'button') element.type = 'button';
	if (classes.length) element.className = classes.join(' ');
	const props = rest[0]?.constructor === Object ? rest.shift() : {};
	for (const [name, value] of Object.entries(props)) {
		if (typeof value === 'function') element.addEventListener(name.slice(2), value);
		else if (value === true) element.setAttribute(name, '');
		else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
	}
	element.append(...rest.flat().filter((child) => child !== null && child !== undefined));
	return element;
}

export const byId = (id) => document.getElementById(id);

const ICONS = {
	menu: 'M4 7h16M4 12h16M4 17h16',
	plus: 'M12 5v14M5 12h14',
	send: 'M12 19V5M6 11l6-6 6 6',
	stop: 'M7 7h10v10H7z',
	copy: 'M9 9h10v10H9zM5 15V5h10',
	check: 'M5 12.5l4.5 4.5L19 7.5',
	edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
	redo: 'M19 12a7 7 0 1 1-2.2-5.1L19 9M19 4v5h-5',
	left: 'M14.5 6l-6 6 6 6',
	right: 'M9.5 6l6 6-6 6',
	down: 'M12 5v14M6 13l6 6 6-6',
	more: 'M5 12h1M11.5 12h1M18 12h1',
	close: 'M6 6l12 12M18 6L6 18',
	sliders: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4',
	eye: 'M2.5 12s3.5-6.5 9.5-6.5S21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12zM12 9.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z',
	pulse: 'M3 12h4l3-7 4 14 3-7h4',
	tokens: 'M4 6h6v5H4zM13 6h7v5h-7zM4 14h9v5H4zM16 14h4v5h-4z',
	alert: 'M12 8v5M12 16.5h.01M12 3.5l9.5 16.5h-19z',
};

export function icon(name) {
	return svg('svg', { viewBox: '0 0 24 24', 'aria-hidden': 'true', class: 'icon' }, svg('path', { d: ICONS[name] }));
}

export function svg(tag, attributes, ...children) {
	const element = document.createElementNS(SVG, tag);
	for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
	element.append(...children);
	return element;
}

/** A button that shows an icon, and its name to those who point at it or cannot see it. */
export function iconButton(name, label, onclick, props = {}) {
	return el('button.icon-button', { 'aria-label': label, title: label, onclick, ...props }, icon(name));
}

export function button(label, onclick, props = {}) {
	return el('button.button', { onclick, ...props }, label);
}

/** Whether a key is Enter, and does not end a composition (Safari has ended it by then). */
export const isEnter = (event) => event.key === 'Enter' && !event.isComposing && event.keyCode !== 229;

/** Whether a key sends what was written. On a phone's keyboard Enter begins a line: there is a button to send. */
export const sends = (event) => isEnter(event) && !event.shiftKey && !matchMedia('(pointer: coarse) and (hover: none)').matches;

/** Changes what is inside an element. If the focused button goes away with it, `find` gives another by its place. */
export function keepFocus(inside, change, find) {
	const { activeElement } = document;
	const at = inside.contains(activeElement) ? [...inside.querySelectorAll('button')].indexOf(activeElement) : -1;
	change();
	if (at >= 0 && !activeElement.isConnected) find(at)?.focus();
}

/** Tells something to those who listen to the page. */
export function announce(text) {
	byId('announcer').textContent = text;
}

/** Copies text; over plain HTTP from another machine browsers only have the old way. */
async function copyText(text) {
	try {
		await navigator.clipboard.writeText(text);
		return true;
	} catch {
		const area = el('textarea.sr-only', { readonly: true });
		const focused = document.activeElement;
		area.value = text;
		document.body.append(area);
		area.select();
		const copied = document.execCommand('copy');
		area.remove();
		focused?.focus();
		return copied;
	}
}

/** Copies, and says so on the button for a moment. */
export async function copyFrom(control, text) {
	const copied = await copyText(text);
	announce(copied ? 'Copied' : 'The browser did not allow copying');
	const before = (control.usual ??= [...control.childNodes]);
	control.replaceChildren(before[0] instanceof Element ? icon(copied ? 'check' : 'alert') : copied ? 'Copied' : 'Not copied');
	setTimeout(() => control.replaceChildren(...before), 1500);
}

export function download(name, type, text) {
	const url = URL.createObjectURL(new Blob([text], { type }));
	el('a', { href: url, download: name }).click();
	setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** An id that nobody else has. (`crypto.randomUUID` is only there over HTTPS and on this machine.) */
export function newId() {
	const bytes = crypto.getRandomValues(new Uint8Array(16));
	return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
