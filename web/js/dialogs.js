/** Questions to the person, and menus. Each gives its answer and puts the focus back where it was. */

import { button, el, isEnter } from './dom.js';

function ask(title, content, buttons) {
	return new Promise((resolve) => {
		const dialog = el('dialog.dialog', { 'aria-labelledby': 'dialog-title', closedby: 'any' }, el('h2', { id: 'dialog-title' }, title), content);
		const close = (answer) => {
			dialog.close();
			dialog.remove();
			resolve(answer);
		};
		dialog.addEventListener('cancel', (event) => {
			event.preventDefault();
			close(null);
		});
		dialog.append(el('div.dialog-buttons', buttons(close)));
		document.body.append(dialog);
		dialog.showModal();
	});
}

function onEnter(input, action) {
	input.addEventListener('keydown', (event) => {
		if (!isEnter(event)) return;
		event.preventDefault(); // or the key goes on to what gets the focus
		action();
	});
}

export async function confirmed(title, text, label) {
	const buttons = (close) => [
		button('Cancel', () => close(null), { autofocus: true }),
		button(label, () => close(true), { class: 'button danger' }),
	];
	return (await ask(title, el('p', text), buttons)) === true;
}

export function askText(title, label, value, accept) {
	const input = el('input', { type: 'text', value, dir: 'auto', autofocus: true, maxlength: '200' });
	return ask(title, el('label.field', label, input), (close) => {
		onEnter(input, () => close(input.value.trim()));
		input.select();
		return [button('Cancel', () => close(null)), button(accept, () => close(input.value.trim()), { class: 'button primary' })];
	});
}

/** The API key: `{ key, keep }`, or null. `isWrong` says that the server refused it. */
export function askKey(key, keep, isWrong) {
	const input = el('input', { type: 'password', value: key, autocomplete: 'off', spellcheck: 'false', autofocus: true });
	const box = el('input', { type: 'checkbox', checked: keep });
	const content = el('div', {},
		el('p', 'The key is sent to this server and nowhere else.'),
		el('label.field', 'API key', input),
		el('label.check', box, 'Keep it in this browser'),
	);
	return ask(isWrong ? 'The server does not know this key' : 'API key', content, (close) => {
		const accept = () => close({ key: input.value.trim(), keep: box.checked });
		onEnter(input, accept);
		return [button('Cancel', () => close(null)), button('Use this key', accept, { class: 'button primary' })];
	});
}

export function showKeys(rows) {
	const list = el('dl.facts', rows.map(([keys, text]) => el('div', el('dt', el('kbd', keys)), el('dd', text))));
	return ask('Keyboard shortcuts', list, (close) => [button('Close', () => close(null), { autofocus: true })]);
}

/** Opens a menu at a control. Entries are `{ label, action, danger }`. */
export function openMenu(control, entries) {
	if (control.nextSibling?.role === 'menu') return; // this very click has closed it
	const menu = el('div.menu', { role: 'menu', popover: 'auto' });
	const items = entries.map(({ label, action, danger }) =>
		el('button', { role: 'menuitem', tabindex: '-1', class: danger ? 'danger' : null, onclick: () => {
			menu.hidePopover();
			action();
		} }, label),
	);
	menu.append(...items);
	menu.addEventListener('keydown', (event) => {
		const at = items.indexOf(document.activeElement);
		const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
		if (event.key === 'Tab') menu.hidePopover();
		if (to === undefined) return;
		event.preventDefault();
		items.at(to % items.length).focus();
	});
	menu.addEventListener('toggle', (event) => {
		if (event.newState !== 'closed') return;
		menu.remove();
		control.ariaExpanded = 'false';
		if (document.activeElement === document.body || menu.contains(document.activeElement)) control.focus();
	});
	control.after(menu);
	control.ariaExpanded = 'true';
	menu.showPopover();
	place(menu, control);
	items[0].focus();
}

function place(menu, control) {
	const at = control.getBoundingClientRect();
	const size = menu.getBoundingClientRect();
	const below = at.bottom + 4 + size.height < innerHeight;
	menu.style.top = `${below ? at.bottom + 4 : Math.max(4, at.top - size.height - 4)}px`;
	menu.style.left = `${Math.max(8, Math.min(at.right - size.width, innerWidth - size.width - 8))}px`;
}
