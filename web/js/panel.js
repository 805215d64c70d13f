/** The tools beside the conversation: one panel with tabs. */

import { byId, el, iconButton } from './dom.js';

export class Panel {
	#tabs = new Map();
	#current;
	#opener;

	constructor() {
		this.element = byId('panel');
		this.tablist = el('div', { role: 'tablist', 'aria-label': 'Tools' });
		const close = iconButton('close', 'Close the tools', () => this.close());
		this.element.append(el('div.panel-head', this.tablist, close));
		this.tablist.addEventListener('keydown', (event) => this.#step(event));
		this.element.addEventListener('keydown', (event) => {
			if (event.key !== 'Escape') return;
			event.stopPropagation();
			this.close();
		});
	}

	/** `view` has an `element`, and may have `shown()` and `hidden()`. */
	add(name, view) {
		const tab = el('button', { role: 'tab', id: `tab-${name}`, 'aria-controls': `page-${name}`, onclick: () => this.open(name) }, name);
		const page = el('div', { role: 'tabpanel', id: `page-${name}`, 'aria-labelledby': `tab-${name}`, class: 'panel-page', tabindex: '0', hidden: true }, view.element);
		this.tablist.append(tab);
		this.element.append(page);
		this.#tabs.set(name, { tab, page, view });
	}

	get isOpen() {
		return !this.element.hidden;
	}

	open(name) {
		if (!this.isOpen) this.#opener = document.activeElement;
		this.element.hidden = false;
		document.body.classList.add('with-panel');
		this.#current = name;
		for (const [other, { tab, page, view }] of this.#tabs) {
			const isShown = other === name;
			tab.setAttribute('aria-selected', String(isShown));
			tab.tabIndex = isShown ? 0 : -1;
			page.hidden = !isShown;
			if (isShown) view.shown?.();
			else view.hidden?.();
		}
		this.#tabs.get(name).tab.focus();
	}

	toggle(name) {
		if (this.isOpen && this.#current === name) this.close();
		else this.open(name);
	}

	close() {
		for (const { view } of this.#tabs.values()) view.hidden?.();
		this.element.hidden = true;
		document.body.classList.remove('with-panel');
		(this.#opener.isConnected ? this.#opener : document.querySelector('.send')).focus();
	}

	#step(event) {
		const names = [...this.#tabs.keys()];
		const at = names.indexOf(this.#current);
		const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
		if (to === undefined) return;
		event.preventDefault();
		this.open(names.at(to % names.length));
	}
}
