/** The list of conversations on narrow screens: comes in from the side, and takes the focus while it is there. */

import { byId } from './dom.js';

export class Drawer {
	#opener = null;

	constructor(element) {
		this.element = element;
		byId('main').addEventListener('pointerdown', (event) => {
			if (!this.isOpen) return;
			event.preventDefault();
			this.close();
		});
	}

	get isOpen() {
		return document.body.classList.contains('with-drawer');
	}

	open() {
		if (!matchMedia('(max-width: 859px)').matches) return;
		this.#opener = document.activeElement;
		document.body.classList.add('with-drawer');
		this.element.querySelector('button').focus();
	}

	close() {
		if (!this.isOpen) return;
		document.body.classList.remove('with-drawer');
		this.#opener?.focus();
	}

	toggle() {
		if (this.isOpen) this.close();
		else this.open();
	}
}
