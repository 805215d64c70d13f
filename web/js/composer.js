/** Where a message is written. */

import { byId, el, icon, iconButton, sends } from './dom.js';

export class Composer {
	/** `app` has `send(text)`, `stop()` and `settings`. */
	constructor(app) {
		this.app = app;
		this.draft = byId('draft');
		this.probabilities = el('button.chip', { onclick: () => app.settings.change({ probabilities: !app.settings.all.probabilities }), title: 'Also ask for each token’s probability' }, icon('tokens'), 'Probabilities');
		this.action = iconButton('send', 'Send', (event) => this.#act(event), { class: 'send' });
		byId('composer-bar').append(this.probabilities, this.action);
		this.draft.addEventListener('input', () => this.#fit());
		this.draft.addEventListener('keydown', (event) => {
			if (!sends(event)) return;
			event.preventDefault();
			this.#send();
		});
		app.settings.addEventListener('change', () => this.#showProbabilities());
		this.#showProbabilities();
		this.setRunning(false);
	}

	focus() {
		this.draft.focus();
	}

	setRunning(isRunning) {
		this.isRunning = isRunning;
		const label = isRunning ? 'Stop' : 'Send';
		this.action.replaceChildren(icon(isRunning ? 'stop' : 'send'));
		this.action.setAttribute('aria-label', label);
		this.action.title = isRunning ? 'Stop (Esc)' : 'Send (Enter)';
		this.#fit();
	}

	#act({ detail }) {
		if (!this.isRunning) this.#send();
		else if (detail < 2) this.app.stop(); // the second click of two would stop what the first one sent
	}

	#send() {
		const text = this.draft.value.trim();
		if (!text || this.isRunning) return;
		this.draft.value = '';
		this.#fit();
		this.app.send(text);
		this.focus();
	}

	#fit() {
		this.draft.style.blockSize = 'auto';
		this.draft.style.blockSize = `${this.draft.scrollHeight}px`;
		this.action.classList.toggle('idle', !this.isRunning && !this.draft.value.trim());
	}

	#showProbabilities() {
		this.probabilities.setAttribute('aria-pressed', String(this.app.settings.all.probabilities));
	}
}
