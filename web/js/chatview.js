/** The conversation on the page: which messages are shown, and how they keep up with answers under way. */

import { pathOf } from './conversation.js';
import { byId, copyFrom, el, iconButton, keepFocus } from './dom.js';
import { Follow } from './follow.js';
import { count } from './format.js';
import { MessageView } from './messageview.js';
import { Speaker } from './speaker.js';

const SUGGESTIONS = ['Explain how rainbows form', 'Write a haiku about the sea', 'What is a prime number?'];
const MOST_SHARE = 0.4;

export class ChatView {
	#views = new Map();
	#shown = null;
	#dirty = new Set();
	#frame = 0;
	#restUntil = 0;
	#speakers = new Map();

	constructor(app) {
		this.app = app;
		this.log = byId('log');
		this.follow = new Follow(byId('scroller'));
		this.jump = iconButton('down', 'To the newest message', () => this.follow.toEnd(), { hidden: true });
		byId('jump').append(this.jump);
		this.follow.addEventListener('change', () => (this.jump.hidden = this.follow.isFollowing));
		this.log.addEventListener('click', (event) => {
			const control = event.target.closest('.copy-code');
			if (control) copyFrom(control, control.closest('figure').querySelector('code').textContent.replace(/\n$/, ''));
		});
		app.answers.addEventListener('change', ({ detail }) => this.#changed(detail));
		app.answers.addEventListener('state', ({ detail }) => this.#stateChanged(detail));
		setInterval(() => this.#tick(), 500);
	}

	viewOf = (id) => this.#views.get(id);

	show() {
		const { conversation } = this.app;
		const isOther = this.#shown !== conversation;
		if (isOther) this.#views.clear();
		this.#shown = conversation;
		this.#views = new Map(pathOf(conversation).map((message) => [message.id, this.viewOf(message.id) ?? new MessageView(this.app, message)]));
		const isEmpty = !this.#views.size;
		this.#put(isEmpty ? [this.#welcome()] : Array.from(this.#views.values(), (view) => view.element));
		this.log.classList.toggle('empty', isEmpty);
		if (isOther) this.follow.toEnd();
		else this.follow.grown();
	}

	/** Puts elements into the log. Those that are in their place already stay untouched. */
	#put(elements) {
		const { children } = this.log;
		let same = 0;
		while (same < elements.length && children[same] === elements[same]) same += 1;
		keepFocus(this.log, () => {
			while (children.length > same) this.log.lastChild.remove();
			this.log.append(...elements.slice(same));
		}, () => this.app.composer.action);
	}

	#welcome() {
		const { props } = this.app.server;
		const context = props ? ` It reads up to ${count(props.max_model_len)} tokens.` : '';
		return el('div.welcome',
			el('p.welcome-title', { dir: 'auto' }, props ? `Talk to ${props.model}` : 'Talk to the model'),
			el('p', `It runs on this server, and nothing you write leaves it.${context}`),
			el('div.suggestions', SUGGESTIONS.map((text) => el('button.suggestion', { onclick: () => this.app.send(text) }, text))),
		);
	}

	#changed(message) {
		if (!this.#views.has(message.id)) return;
		this.#dirty.add(message.id);
		this.#frame ||= requestAnimationFrame(() => this.#draw());
	}

	/** Draws what has changed. After a frame that was dear the next ones are left to the browser. */
	#draw() {
		this.#frame = 0;
		const started = performance.now();
		if (started < this.#restUntil) {
			this.#frame = requestAnimationFrame(() => this.#draw());
			return;
		}
		for (const id of this.#dirty) {
			const view = this.#views.get(id);
			view?.grow();
			if (view) this.#speak(view.message, false);
		}
		this.#dirty.clear();
		this.follow.grown();
		this.app.showMeters();
		const cost = performance.now() - started;
		if (cost > 4) this.#restUntil = started + cost / MOST_SHARE;
	}

	#stateChanged(message) {
		const isRunning = this.app.answers.runOf(message.id) !== null;
		if (isRunning) this.#speakers.set(message.id, new Speaker(message.content.length));
		else this.#speak(message, true);
		this.#views.get(message.id)?.refresh();
		this.follow.grown();
	}

	#speak(message, isOver) {
		if (this.#views.has(message.id)) this.#speakers.get(message.id)?.follow(message.content, isOver);
		if (isOver) this.#speakers.delete(message.id);
	}

	#tick() {
		for (const view of this.#views.values()) view.tick();
	}
}
