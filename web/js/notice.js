/** The line above the conversation: what state the server is in, if it is not simply ready. */

import { button, byId, el, iconButton } from './dom.js';
import { describe } from './failures.js';

export class Notice {
	constructor(app) {
		this.app = app;
		this.element = byId('notice');
		app.server.addEventListener('change', () => this.#show());
	}

	/** Tells something that can be sent away. */
	say(text) {
		const row = el('div.notice', el('span', text), iconButton('close', 'Dismiss', () => row.remove()));
		this.element.append(row);
	}

	unsaved(text = 'The browser could not keep this conversation: its storage may be full. Export what you need.') {
		if (!this.hasWarned) this.say(text);
		this.hasWarned = true;
	}

	#show() {
		const { state } = this.app.server;
		this.row?.remove();
		this.row = null;
		if (state === 'connecting') return;
		if (state === 'ready') {
			if (this.wasAway) this.#isBack();
			this.wasAway = false;
			return;
		}
		this.wasAway = state !== 'key';
		const { title, text } = describe({ kind: state });
		const action = state === 'key' ? button('Enter a key', () => this.app.enterKey()) : button('Check again', () => this.app.server.check());
		this.row = el('div.notice.warning', el('span', el('strong', `${title}. `), text), action);
		this.element.append(this.row);
	}

	#isBack() {
		const row = el('div.notice.good', 'The server is back.');
		this.element.append(row);
		setTimeout(() => row.remove(), 3000);
	}
}
