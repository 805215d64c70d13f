/** Server-sent events, from bytes to events. Pure, and the same wherever the bytes are split. */

const LONGEST_LINE = 8 << 20;

/**
 * Reads the bytes of a stream as they come. `push` returns the events that are complete: `{ event, data }`,
 * or `{ comment }` for a comment line. An event that the stream breaks off inside is not one, and never shows.
 */
export class SseParser {
	#decoder = new TextDecoder();
	#line = '';
	#skipLineFeed = false;
	#event = '';
	#data = [];

	push(bytes) {
		return this.#read(this.#decoder.decode(bytes, { stream: true }));
	}

	#read(text) {
		const events = [];
		const breaks = /\r\n?|\n/g;
		let start = this.#skipLineFeed && text.startsWith('\n') ? 1 : 0;
		if (text) this.#skipLineFeed = false;
		breaks.lastIndex = start;
		for (let found; (found = breaks.exec(text)); start = breaks.lastIndex) {
			this.#take(this.#line + text.slice(start, found.index), events);
			this.#line = '';
			// The line feed of this pair may be in the next chunk.
			this.#skipLineFeed = found[0] === '\r' && breaks.lastIndex === text.length;
		}
		this.#line += text.slice(start);
		if (this.#line.length > LONGEST_LINE) throw new RangeError('a line of the stream is too long');
		return events;
	}

	#take(line, events) {
		if (line === '') return this.#dispatch(events);
		if (line.startsWith(':')) return void events.push({ comment: line.slice(1).trim() });
		const colon = line.indexOf(':');
		const field = colon < 0 ? line : line.slice(0, colon);
		const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
		if (field === 'data') this.#data.push(value);
		else if (field === 'event') this.#event = value;
	}

	#dispatch(events) {
		if (this.#data.length) events.push({ event: this.#event || 'message', data: this.#data.join('\n') });
		this.#data = [];
		this.#event = '';
	}
}
