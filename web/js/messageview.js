/** One message on the page. */

import { placeOf } from './conversation.js';
import { button, copyFrom, el, icon, iconButton, keepFocus, sends } from './dom.js';
import { describe } from './failures.js';
import { duration, rate, tokensText } from './format.js';
import { MarkdownView } from './markdown/view.js';
import { tokenView } from './tokens.js';

/** `app` gives `conversation`, `answers` and what the buttons do. */
export class MessageView {
	#showsTokens = false;

	constructor(app, message) {
		this.app = app;
		this.message = message;
		const who = message.role === 'user' ? 'You' : 'Assistant';
		this.body = el('div.body');
		this.notes = el('div.notes');
		this.foot = el('footer.message-foot');
		this.element = el('article', { class: `message ${message.role}`, 'aria-label': who }, el('h2.sr-only', who));
		if (message.role === 'assistant') {
			this.markdown = new MarkdownView(this.body);
			this.#addReasoning();
		}
		this.element.append(this.body, this.notes, this.foot);
		this.refresh();
	}

	get run() {
		return this.app.answers.runOf(this.message.id);
	}

	refresh() {
		const { message } = this;
		const isRunning = this.run !== null;
		if (isRunning && this.#showsTokens) return this.#toggleTokens();
		this.element.classList.toggle('running', isRunning);
		this.element.setAttribute('aria-busy', String(isRunning));
		if (message.role === 'user') this.#showText();
		else this.grow();
		keepFocus(this.element, () => {
			this.notes.replaceChildren(...this.#notes());
			this.#showFoot();
		}, () => this.app.composer.action);
	}

	grow() {
		const { message } = this;
		if (message.role === 'user') return;
		const isRunning = this.run !== null;
		this.#showReasoning(isRunning);
		if (this.#showsTokens) return;
		this.markdown.update(message.content, isRunning);
		if (this.meta) this.meta.textContent = this.#metaText();
	}

	tick() {
		const wait = this.app.answers.waitOf(this.message.id);
		if (wait && this.countdown) this.countdown.textContent = countdownText(wait);
		if (this.run && !this.message.content && this.meta) this.meta.textContent = this.#metaText();
	}

	edit() {
		const area = el('textarea.edit', { dir: 'auto', 'aria-label': 'Edit the message' });
		area.value = this.message.content;
		const cancel = () => {
			this.refresh();
			this.element.querySelector('.message-foot button')?.focus();
		};
		const send = () => area.value.trim() && this.app.edit(this.message, area.value);
		area.addEventListener('keydown', (event) => {
			if (event.key === 'Escape' && !event.isComposing) cancel();
			else if (sends(event)) {
				event.preventDefault();
				send();
			} else return;
			event.stopPropagation();
		});
		this.element.classList.add('editing');
		this.body.replaceChildren(area);
		this.foot.replaceChildren(button('Cancel', cancel), button('Send', send, { class: 'button primary' }));
		area.style.blockSize = `${Math.min(area.scrollHeight + 4, 400)}px`;
		area.focus();
	}

	#showText() {
		this.element.classList.remove('editing');
		this.body.replaceChildren(el('p.plain', { dir: 'auto' }, this.message.content));
	}

	#addReasoning() {
		this.reasoningLabel = el('span');
		const body = el('div.reasoning-body');
		this.reasoning = el('details.reasoning', { hidden: true }, el('summary', this.reasoningLabel), body);
		this.reasoningText = new MarkdownView(body);
		this.reasoning.addEventListener('toggle', () => this.grow());
		this.element.append(this.reasoning);
	}

	#showReasoning(isRunning) {
		const { reasoning = '', content, thought } = this.message;
		this.reasoning.hidden = !reasoning;
		if (!reasoning) return;
		const isThinking = isRunning && !content;
		this.reasoning.classList.toggle('thinking', isThinking);
		this.reasoningLabel.textContent = isThinking ? 'Thinking…' : thought ? `Thought for ${duration(thought)}` : 'Thoughts';
		if (this.reasoning.open) this.reasoningText.update(reasoning, isThinking);
	}

	#notes() {
		const { message } = this;
		this.countdown = null;
		const wait = this.app.answers.waitOf(message.id);
		if (this.run) return [];
		if (message.failure) return [this.#failureNote(message.failure, wait)];
		if (message.status === 'stopped') return [this.#note('Stopped.', this.#continueButton())];
		if (message.finish === 'length') return [this.#note('The answer reached its limit of tokens.', this.#continueButton())];
		if (message.status === 'done' && !message.content) return [this.#note('The answer is empty.')];
		return [];
	}

	#note(text, action) {
		return el('div.note-row', el('span', text), action);
	}

	#failureNote(failure, wait) {
		const { title, text, canRetry } = describe(failure);
		const actions = [];
		if (wait) {
			this.countdown = el('span.countdown', countdownText(wait));
			actions.push(this.countdown, button('Try now', () => this.app.retry(this.message)), button('Do not try again', () => this.app.answers.forget(this.message.id)));
		} else {
			if (failure.kind === 'key') actions.push(button('Enter a key', () => this.app.enterKey(this.message), { class: 'button primary' }));
			actions.push(this.#continueButton());
			if (canRetry) actions.push(button('Try again', () => this.app.retry(this.message)));
			if (failure.kind === 'context') actions.push(button('New chat', () => this.app.newChat()));
		}
		return el('div.failure', { role: 'alert' },
			icon('alert'),
			el('div', el('p.failure-title', title), text ? el('p', text) : null,
				el('div.failure-actions', actions)),
		);
	}

	#continueButton() {
		const isHopeless = !this.message.content || ['context', 'invalid', 'too-large'].includes(this.message.failure?.kind);
		return isHopeless ? null : button('Continue', () => this.app.goOn(this.message));
	}

	#showFoot() {
		const { message } = this;
		this.meta = message.role === 'assistant' ? el('span.meta', this.#metaText()) : null;
		const controls = this.run ? [] : [...this.#branches(), ...this.#actions()];
		this.foot.replaceChildren(...controls, ...(this.meta ? [this.meta] : []));
	}

	#branches() {
		const { index, count, ids } = placeOf(this.app.conversation, this.message.id);
		if (count < 2) return [];
		const step = (by, name, label) => iconButton(name, label, () => this.app.selectBranch(this.message, by), { disabled: !ids[index + by] });
		return [el('span.branches', { role: 'group', 'aria-label': `Version ${index + 1} of ${count}` },
			step(-1, 'left', 'Previous version'), el('span', `${index + 1}/${count}`), step(1, 'right', 'Next version'))];
	}

	#actions() {
		const { message, app } = this;
		const copy = iconButton('copy', 'Copy message', () => copyFrom(copy, message.content));
		if (message.role === 'user') return [copy, iconButton('edit', 'Edit and send again', () => this.edit())];
		const actions = [copy, iconButton('redo', 'Answer again', () => app.regenerate(message)), iconButton('eye', 'What the model saw', () => app.showPrompt(message))];
		if (message.tokens?.length) actions.push(iconButton('tokens', 'Tokens and probabilities', () => this.#toggleTokens(), { 'aria-pressed': String(this.#showsTokens) }));
		return actions;
	}

	#toggleTokens() {
		this.#showsTokens = !this.#showsTokens;
		this.body.replaceChildren();
		this.markdown = new MarkdownView(this.body);
		if (this.#showsTokens) this.body.append(tokenView(this.message.tokens));
		this.refresh();
		this.foot.querySelector('[aria-pressed]')?.focus();
	}

	#metaText() {
		const { run, message: { timing, usage } } = this;
		if (!run) return numbers(usage?.completion, timing?.rate, timing?.first);
		if (run.firstAt === null) return `Waiting for the first token · ${duration(performance.now() - run.started)}`;
		return numbers(usage?.completion ?? run.tokens, run.currentRate, run.firstAt - run.started);
	}
}

function numbers(tokens, perSecond, first) {
	const parts = [];
	if (tokens != null) parts.push(tokensText(tokens));
	if (perSecond) parts.push(`${rate(perSecond)} tokens/s`);
	if (first != null) parts.push(`first after ${duration(first)}`);
	return parts.join(' · ');
}

const countdownText = (wait) => `Trying again in ${Math.max(0, Math.ceil((wait.at - Date.now()) / 1000))} s (${wait.tries} of 5)`;
