/** What state the server is in, watched while the page is looked at. */

import { RequestFailed } from './failures.js';

const CALM = 15_000;
const SOON = 1500;

/** Fires `change`. `state` is 'connecting', 'ready', 'key', or the kind of a failure; `props` is null until known. */
export class Server extends EventTarget {
	state = 'connecting';
	props = null;
	#timer = 0;
	#wait = SOON;
	#asking = null;

	constructor(api) {
		super();
		this.api = api;
		document.addEventListener('visibilitychange', () => document.hidden || this.check());
		addEventListener('online', () => this.check());
		addEventListener('offline', () => this.check());
	}

	/** Asks now. While that is under way, asking again gives the same answer. */
	check() {
		this.#asking ??= this.#ask().finally(() => {
			this.#asking = null;
			clearTimeout(this.#timer);
			const isSettled = this.state === 'ready' || this.state === 'key';
			this.#wait = isSettled ? CALM : this.state === 'loading' ? SOON : Math.min(CALM, this.#wait * 1.5);
			this.#timer = setTimeout(() => document.hidden || this.check(), this.#wait);
		});
		return this.#asking;
	}

	/** Whether the server takes the key that was just entered. */
	async takesKey() {
		await this.#asking;
		this.props = null;
		await this.check();
		return this.state !== 'key';
	}

	async #ask() {
		const before = this.state;
		try {
			await this.api.ready();
			if (before !== 'ready' || !this.props) this.props = await this.api.props();
			if (!(this.props?.max_model_len > 0)) this.props = null;
			this.#set(this.props ? 'ready' : 'garbled');
		} catch (error) {
			this.#set(error instanceof RequestFailed ? error.failure.kind : 'garbled');
		}
	}

	#set(state) {
		if (this.state === state) return;
		this.state = state;
		this.#wait = SOON;
		this.dispatchEvent(new Event('change'));
	}
}
