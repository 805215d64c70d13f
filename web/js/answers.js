/** Answers under way, in whatever conversation: starts them, tries again, keeps them as they grow. */

import { isPassing } from './failures.js';
import { Run } from './run.js';

const SAVE_EVERY = 1000;
const MOST_TRIES = 5;
const LONGEST_WAIT = 60;

/** Fires `change` (`detail` is the message) whenever an answer grows, and `state` when it begins, waits or ends. */
export class Answers extends EventTarget {
	#runs = new Map();
	#waits = new Map();
	#conversations = new Map();
	#saved = new Map();

	constructor(api, settings, store) {
		super();
		Object.assign(this, { api, settings, store });
	}

	runOf = (id) => this.#runs.get(id) ?? null;

	/** When an answer is tried again, as `{ at, tries }`, or null. */
	waitOf = (id) => this.#waits.get(id) ?? null;

	/** The answer under way among some messages, or null. */
	activeIn = (path) => path.find((message) => this.#runs.has(message.id) || this.#waits.has(message.id)) ?? null;

	/** The conversations with an answer under way. */
	conversations = () => [...new Set(this.#conversations.values())];

	/** Makes the answer to `path` in `message` anew, or goes on with it. */
	async start(conversation, path, message, { continues = false, tries = 0 } = {}) {
		this.forget(message.id);
		if (!continues) for (const name of ['reasoning', 'thought', 'tokens', 'usage', 'timing']) delete message[name];
		this.#conversations.set(message.id, conversation);
		const body = this.settings.bodyFor(continues ? [...path, message] : path, { continues });
		const run = new Run(this.api, body, message);
		this.#runs.set(message.id, run);
		run.addEventListener('change', () => {
			this.#tell('change', message);
			this.#saveNowAndThen(conversation, message);
		});
		const ended = run.start();
		this.#tell('state', message);
		await ended;
		this.#runs.delete(message.id);
		this.#saved.delete(message.id);
		const again = message.failure && isPassing(message.failure.kind) && message.content === '' && tries < MOST_TRIES;
		if (again) this.#wait(conversation, path, message, tries + 1);
		else this.#conversations.delete(message.id);
		await this.#save(conversation, message);
		this.#tell('state', message);
	}

	stop(id) {
		this.#runs.get(id)?.stop();
		if (this.#waits.has(id)) this.forget(id);
	}

	/** Does not try again. */
	forget(id) {
		const wait = this.#waits.get(id);
		if (!wait) return;
		clearTimeout(wait.timer);
		this.#waits.delete(id);
		this.#conversations.delete(id);
		this.#tell('state', wait.message);
	}

	#wait(conversation, path, message, tries) {
		const asked = message.failure.retryAfter ?? 0;
		const seconds = Math.min(LONGEST_WAIT, Math.max(asked, 2 ** (tries - 1)) * (1 + 0.2 * Math.random())); // not all at once
		const timer = setTimeout(() => this.start(conversation, path, message, { tries }), 1000 * seconds);
		this.#waits.set(message.id, { at: Date.now() + 1000 * seconds, tries, timer, message });
	}

	#tell(type, detail) {
		this.dispatchEvent(new CustomEvent(type, { detail }));
	}

	#saveNowAndThen(conversation, message) {
		const now = performance.now();
		if (now - (this.#saved.get(message.id) ?? 0) < SAVE_EVERY) return;
		this.#saved.set(message.id, now);
		this.#save(conversation, { ...message, tokens: undefined }); // these are many, and kept at the end
	}

	async #save(conversation, message) {
		if (!conversation.isRemoved) await this.store.save(conversation, [message]);
	}
}
