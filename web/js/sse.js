/** Server-sent events, from bytes to events. Pure, and the same wherever the bytes are split. */

const LONGEST_LINE = 8 << 20;

/**
 * Reads the bytes of a stream as they come. `push` returns the data of the events that are complete. An event that
 * the stream breaks off inside is not one, and never shows. Comments and kinds of events are passed over.
 */
export class SseParser {
	#decoder = new TextDecoder();
	#line = '';
	#skipLineFeed = false;
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
		const data = /^data(?:: ?|$)/.exec(line);
		if (data) this.#data.push(line.slice(data[0].length));
		if (line || !this.#data.length) return;
		events.push(this.#data.join('\n'));
		this.#data = [];
	}
}
