/** The list of conversations on narrow screens: comes in from the side, and takes the focus while it is there. */

import { byId } from './dom.js';

export class Drawer {
	#opener;
	#narrow = matchMedia('(max-width: 859px)');

	constructor(element) {
		this.element = element;
		this.#narrow.addEventListener('change', () => this.close());
		byId('main').addEventListener('click', ({ target, currentTarget }) => target === currentTarget && this.close());
	}

	get isOpen() {
		return document.body.classList.contains('with-drawer');
	}

	open() {
		if (!this.#narrow.matches) return;
		this.#opener = document.activeElement;
		this.#cover(true);
		this.element.querySelector('button').focus();
	}

	close() {
		if (!this.isOpen) return;
		this.#cover(false);
		this.#opener.focus();
	}

	#cover(isOpen) {
		document.body.classList.toggle('with-drawer', isOpen);
		for (const part of document.querySelectorAll('#main > :not(#top), .top-side')) part.inert = isOpen;
	}
}
