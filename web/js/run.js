/** One answer being made: reads the chunks into a message, and keeps time. */

import { newId } from './dom.js';
import { RequestFailed, failure } from './failures.js';

const RATE_WINDOW = 2000;
const SHORTEST = 50; // milliseconds; what comes all at once has no speed

/**
 * Fires `change` whenever the message has changed, and `end` once. `message.status` is 'running', then 'done',
 * 'stopped' or 'failed'. A message that has content already is gone on with.
 */
export class Run extends EventTarget {
	#abort = new AbortController();
	#samples = [];
	#isStopped = false;
	#base;

	constructor(api, body, message) {
		super();
		this.api = api;
		this.body = body;
		this.message = message;
		this.requestId = newId();
		this.tokens = 0;
		this.started = this.firstAt = this.lastAt = null;
		this.#base = message.usage?.completion ?? 0;
	}

	/** Tokens a second over the last moments, or null before there is anything to say. */
	get currentRate() {
		const from = this.#samples[0];
		const to = this.#samples.at(-1);
		if (!from || to.at - from.at < 200) return null;
		return (1000 * (to.tokens - from.tokens)) / (to.at - from.at);
	}

	/** Asks the server to end it, since a proxy may keep a connection that is left; then leaves. */
	async stop() {
		if (this.#isStopped) return;
		this.#isStopped = true;
		await Promise.race([this.api.cancel(this.requestId), new Promise((done) => setTimeout(done, 300))]);
		this.#abort.abort();
	}

	async start() {
		const { message } = this;
		Object.assign(message, { status: 'running', failure: null, finish: null });
		this.started = performance.now();
		this.#changed();
		try {
			for await (const chunk of this.api.chat(this.body, { signal: this.#abort.signal, requestId: this.requestId })) {
				this.#take(chunk);
				this.#changed();
			}
			message.status = 'done';
		} catch (error) {
			this.#failed(error);
		}
		this.#keepTime();
		this.#changed();
		this.dispatchEvent(new Event('end'));
	}

	#changed() {
		this.dispatchEvent(new Event('change'));
	}

	#failed(error) {
		const { message } = this;
		if (this.#isStopped) message.status = 'stopped';
		else if (message.finish && error instanceof RequestFailed) message.status = 'done'; // only the farewell is missing
		else {
			message.status = 'failed';
			message.failure = error instanceof RequestFailed ? error.failure : failure('garbled');
		}
	}

	#take(chunk) {
		const choice = chunk.choices?.[0];
		if (choice) this.#takeChoice(choice);
		if (chunk.usage) this.#takeUsage(chunk.usage);
		const now = performance.now();
		this.#samples.push({ at: now, tokens: this.tokens });
		while (this.#samples[0].at < now - RATE_WINDOW) this.#samples.shift();
	}

	#takeChoice(choice) {
		const { message } = this;
		const { content, reasoning_content: reasoning } = choice.delta ?? {};
		if (content || reasoning) {
			this.lastAt = performance.now();
			this.firstAt ??= this.lastAt;
			this.tokens += 1; // until the server's own count comes
		}
		if (reasoning) message.reasoning = (message.reasoning ?? '') + reasoning;
		if (content) {
			if (message.reasoning && !message.content) message.thought = performance.now() - this.firstAt;
			message.content += content;
		}
		for (const entry of choice.logprobs?.content ?? []) if (Number.isFinite(entry.logprob)) (message.tokens ??= []).push(compact(entry));
		if (choice.finish_reason) message.finish = choice.finish_reason;
	}

	#takeUsage(usage) {
		this.tokens = usage.completion_tokens;
		this.message.usage = { completion: this.#base + this.tokens, total: usage.total_tokens };
	}

	#keepTime() {
		if (this.firstAt === null) return;
		const streaming = this.lastAt - this.firstAt;
		this.message.timing = {
			first: this.body.stream ? this.firstAt - this.started : null,
			rate: this.body.stream
				? streaming > SHORTEST ? (1000 * (this.tokens - 1)) / streaming : null
				: (1000 * this.tokens) / (this.lastAt - this.started),
		};
	}
}

/** A token as it is kept: `[text, logprob, [[text, logprob], ...]]`. */
function compact(entry) {
	return [String(entry.token), entry.logprob, (entry.top_logprobs ?? []).map((other) => [String(other.token), Number(other.logprob)])];
}
