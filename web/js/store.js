/** Conversations in the browser's own database. What it does not take is held in memory, until the page is closed. */

const STORES = ['conversations', 'messages'];
const PATIENCE = 3000; // some browsers never say that they do not open a database

function openDatabase(onclose) {
	return new Promise((resolve, reject) => {
		const request = indexedDB.open('tinyllm', 1);
		request.onupgradeneeded = () => {
			request.result.createObjectStore('conversations', { keyPath: 'id' });
			request.result.createObjectStore('messages', { keyPath: 'id' }).createIndex('conversation', 'conversation');
		};
		request.onsuccess = () => {
			const database = request.result;
			database.onclose = onclose;
			database.onversionchange = () => {
				database.close();
				onclose();
			};
			resolve(database);
		};
		request.onerror = reject;
		setTimeout(reject, PATIENCE);
	});
}

const result = (request) =>
	new Promise((resolve, reject) => {
		request.onsuccess = () => resolve(request.result);
		request.onerror = () => reject(request.error);
	});

/** Fires `unsaved` when a conversation could only be held in memory. */
export class Store extends EventTarget {
	#database = null;
	#held = new Map();

	async #open(mode = 'readonly') {
		this.#database ??= openDatabase(() => (this.#database = null));
		const transaction = (await this.#database).transaction(STORES, mode);
		const done = new Promise((resolve, reject) => {
			transaction.oncomplete = resolve;
			transaction.onabort = transaction.onerror = () => reject(transaction.error);
		});
		done.catch(() => {}); // whoever waits for it hears of it
		return { conversations: transaction.objectStore('conversations'), messages: transaction.objectStore('messages'), done };
	}

	async #read(action, otherwise) {
		try {
			return await action(await this.#open());
		} catch {
			return otherwise;
		}
	}

	/** Whether there is a database that can be read. */
	isKept = () => this.#read(async ({ conversations }) => (await result(conversations.count())) >= 0, false);

	/** The heads of all conversations, newest first. */
	async list() {
		const kept = await this.#read(({ conversations }) => result(conversations.getAll()), []);
		return [...kept.filter(({ id }) => !this.#held.has(id)), ...this.#held.values()].sort((a, b) => b.updated - a.updated);
	}

	/** A conversation, or null. */
	async load(id) {
		return this.#held.get(id) ?? this.#read(async ({ conversations, messages }) => {
			const [head, all] = await Promise.all([result(conversations.get(id)), result(messages.index('conversation').getAll(id))]);
			return head ? { ...head, messages: Object.fromEntries(all.map(({ conversation: _, ...message }) => [message.id, message])) } : null;
		}, null);
	}

	/** Keeps a conversation's head, and those of its messages that have changed; all, if it was not there. */
	async save(conversation, changed) {
		const { messages: all, ...head } = conversation;
		try {
			const { conversations, messages, done } = await this.#open('readwrite');
			const isNew = this.#held.has(head.id) || !(await result(conversations.getKey(head.id)));
			conversations.put(head);
			for (const message of (!isNew && changed) || Object.values(all)) messages.put({ ...message, conversation: head.id });
			await done;
			this.#held.delete(head.id);
		} catch {
			this.#held.set(head.id, conversation);
			this.dispatchEvent(new Event('unsaved'));
		}
	}

	async #delete(action) {
		if (!(await this.isKept())) return;
		const stores = await this.#open('readwrite');
		await action(stores);
		await stores.done;
	}

	remove(id) {
		this.#held.delete(id);
		return this.#delete(async ({ conversations, messages }) => {
			conversations.delete(id);
			for (const key of await result(messages.index('conversation').getAllKeys(id))) messages.delete(key);
		});
	}

	clear() {
		this.#held.clear();
		return this.#delete((stores) => [stores.conversations, stores.messages].forEach((each) => each.clear()));
	}

	/** The ids of the conversations that have a text in their title or in a message. Ends early when it `isStale`. */
	async search(text, isStale) {
		const wanted = text.toLowerCase();
		const found = new Set();
		const look = (id, where) => String(where).toLowerCase().includes(wanted) && found.add(id);
		for (const { id, title } of await this.list()) look(id, title);
		for (const { id, messages } of this.#held.values()) for (const { content } of Object.values(messages)) look(id, content);
		await this.#read(({ messages }) => new Promise((resolve, reject) => {
			const request = messages.openCursor();
			request.onerror = () => reject(request.error);
			request.onsuccess = () => {
				const cursor = request.result;
				if (!cursor || isStale()) return resolve();
				look(cursor.value.conversation, cursor.value.content);
				cursor.continue();
			};
		}));
		return found;
	}
}
