/** What can go wrong, in words that say what to do. Pure. */

const BY_CODE = {
	__proto__: null,
	context_length_exceeded: 'context',
	invalid_api_key: 'key',
	server_shutting_down: 'draining',
	engine_closed: 'draining',
	model_loading: 'loading',
	engine_dead: 'dead',
	model_failed: 'dead',
	engine_stalled: 'dead',
	request_timeout: 'timeout',
	slow_consumer: 'broken',
	request_aborted: 'aborted',
};
const BY_STATUS = { 401: 'key', 403: 'forbidden', 408: 'timeout', 413: 'too-large', 421: 'forbidden', 429: 'busy', 503: 'unavailable', 504: 'timeout' };

/** Each kind: what happened, what to do about it, and whether the same request may go well later. */
const WORDS = {
	offline: ['The server cannot be reached', 'Check that it still runs and that this device is connected. Nothing you wrote is lost.', true],
	busy: ['The server is busy', 'It takes no more requests at the moment.', true],
	draining: ['The server is shutting down', 'It finishes running answers and takes no new ones. Try again once it is back.', true],
	loading: ['The model is still being loaded', 'This takes a moment after the server starts.', true],
	unavailable: ['The server takes no requests now', 'Try again in a moment.', true],
	dead: ['The model stopped working', 'Somebody has to start the server again; its log says why.', true],
	key: ['This server needs an API key', 'The key is missing or not one it knows.', true],
	forbidden: ['The server refused this page', '', false],
	context: ['The conversation is longer than the model can read', 'Start a new chat, edit an earlier message, or lower “Max tokens” in the settings.', false],
	'too-large': ['The message is too large', 'Make it shorter, or raise the server’s --max-body-bytes.', false],
	invalid: ['The server did not accept the request', '', false],
	timeout: ['The answer took too long', 'The server gave up on it after its time limit.', true],
	aborted: ['The answer was cancelled', 'Somebody or something ended it on the server.', true],
	broken: ['The connection broke in the middle', 'What had arrived is kept.', true],
	garbled: ['The answer cannot be read', 'It was changed on its way, or does not come from this server.', true],
	failed: ['Something failed on the server', 'Its log has the cause.', true],
};

/** A failure is plain data, so that it can be kept with the message: `{ kind, detail, retryAfter }`. */
export const failure = (kind, detail = '', retryAfter = null) => ({ kind, detail, retryAfter });

/** Reads the error envelope of a response, or of an event in a stream (`status` 0). */
export function failureFrom(status, body, headers = null) {
	const error = body?.error ?? {};
	const kind = BY_CODE[error.code] ?? BY_STATUS[status] ?? (status >= 400 && status < 500 ? 'invalid' : 'failed');
	const seconds = Number.parseInt(headers?.get('retry-after') ?? '', 10);
	const detail = typeof error.message === 'string' ? error.message.slice(0, 600) : status ? `status ${status}` : '';
	return failure(kind, detail, Number.isFinite(seconds) ? seconds : null);
}

/** Kinds that go away by themselves: worth trying again without being asked. */
export const isPassing = (kind) => kind === 'busy' || kind === 'loading';

/** `{ title, text, canRetry }` for people. */
export function describe({ kind, detail }) {
	const [title, text, canRetry] = WORDS[kind] ?? WORDS.failed;
	const saysMore = ['context', 'invalid', 'forbidden', 'failed', 'too-large', 'timeout'].includes(kind) && detail;
	const sentence = saysMore ? `${detail[0].toUpperCase()}${detail.slice(1)}${/[.!?]$/.test(detail) ? '' : '.'}` : '';
	return { title, text: [sentence, text].filter(Boolean).join(' '), canRetry };
}

export class RequestFailed extends Error {
	constructor(what) {
		super(describe(what).title);
		this.failure = what;
	}
}
