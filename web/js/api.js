/** The server's endpoints. Everything goes to where this page came from. */

import { RequestFailed, failure, failureFrom } from './failures.js';
import { SseParser } from './sse.js';

const BASE = new URL('../../', import.meta.url);
const PATIENCE = 15_000; // with all but answers

export class Api {
	/** `getKey` returns the API key, or ''. */
	constructor(getKey) {
		this.getKey = getKey;
	}

	ready = () => this.#json('ready');
	props = () => this.#json('props');
	metrics = async () => (await this.#fetch('metrics')).text();
	render = (body) => this.#json('v1/chat/completions/render', body);

	/** Ends a request on the server. That it is over already is no failure. */
	cancel = (requestId) => this.#fetch(`v1/requests/${requestId}/cancel`, {}).catch(() => {});

	/** Yields the chunks of an answer; an answer that does not stream is one chunk of the same form. */
	async *chat(body, { signal, requestId }) {
		const response = await this.#fetch('v1/chat/completions', body, signal, requestId);
		if (!body.stream) {
			yield wholeAsChunk(await read(response.json(), signal));
			return;
		}
		const parser = new SseParser();
		const reader = response.body.getReader();
		try {
			for (;;) {
				const { done, value } = await read(reader.read(), signal);
				if (done) throw new RequestFailed(failure('broken'));
				for (const data of parser.push(value)) {
					if (data === '[DONE]') return;
					if (data) yield chunkOf(data);
				}
			}
		} finally {
			reader.cancel().catch(() => {});
		}
	}

	async #json(path, body) {
		return read((await this.#fetch(path, body)).json());
	}

	async #fetch(path, body, signal, requestId) {
		const headers = {};
		const key = this.getKey();
		if (/[^!-~]/.test(key)) throw new RequestFailed(failure('key')); // no header can have it
		if (key) headers.authorization = `Bearer ${key}`;
		if (body) headers['content-type'] = 'application/json';
		if (requestId) headers['x-request-id'] = requestId;
		const options = { headers, signal: signal ?? AbortSignal.timeout(PATIENCE), credentials: 'omit', cache: 'no-store', redirect: 'error' };
		if (body) Object.assign(options, { method: 'POST', body: JSON.stringify(body) });
		let response;
		try {
			response = await fetch(new URL(path, BASE), options);
		} catch (error) {
			if (signal?.aborted) throw error;
			throw new RequestFailed(failure('offline'));
		}
		if (response.ok) return response;
		throw new RequestFailed(failureFrom(response.status, await response.json().catch(() => null), response.headers));
	}
}

async function read(body, signal) {
	try {
		return await body;
	} catch (error) {
		if (signal?.aborted) throw error;
		throw new RequestFailed(failure(error instanceof SyntaxError ? 'garbled' : 'broken'));
	}
}

function chunkOf(data) {
	const chunk = JSON.parse(data);
	if (chunk.error) throw new RequestFailed(failureFrom(0, chunk));
	return chunk;
}

function wholeAsChunk(body) {
	return { ...body, choices: body.choices.map(({ message, ...choice }) => ({ ...choice, delta: message })) };
}
