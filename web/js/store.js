/** Conversations in the browser's own database; in memory where that is not allowed. */

const STORES = ['conversations', 'messages'];

/** Opens the store. `isKept` is false where everything is gone with the page. */
export async function openStore() {
	try {
		return new DatabaseStore(await openDatabase());
	} catch {
		return new MemoryStore();
	}
}

function openDatabase() {
	return new Promise((resolve, reject) => {
		const request = indexedDB.open('tinyllm', 1);
		request.onupgradeneeded = () => {
			request.result.createObjectStore('conversations', { keyPath: 'id' });
			request.result.createObjectStore('messages', { keyPath: 'id' }).createIndex('conversation', 'conversation');
		};
		request.onsuccess = () => resolve(request.result);
		request.onerror = () => reject(request.error);
		request.onblocked = () => reject(new Error('another version of the page is open'));
	});
}

const result = (request) =>
	new Promise((resolve, reject) => {
		request.onsuccess = () => resolve(request.result);
		request.onerror = () => reject(request.error);
	});

const isNewer = (a, b) => b.updated - a.updated;

const has = (text, wanted) => text.toLowerCase().includes(wanted);

class DatabaseStore {
	isKept = true;

	constructor(database) {
		this.database = database;
		database.onversionchange = () => database.close();
	}

	#open(mode = 'readonly') {
		const transaction = this.database.transaction(STORES, mode);
		const done = new Promise((resolve, reject) => {
			transaction.oncomplete = resolve;
			transaction.onabort = transaction.onerror = () => reject(transaction.error);
		});
		done.catch(() => {}); // whoever waits for it hears of it
		return { conversations: transaction.objectStore('conversations'), messages: transaction.objectStore('messages'), done };
	}

	/** The heads of all conversations (without their messages), newest first. */
	async list() {
		return (await result(this.#open().conversations.getAll())).sort(isNewer);
	}

	async load(id) {
		const { conversations, messages } = this.#open();
		const [head, all] = await Promise.all([result(conversations.get(id)), result(messages.index('conversation').getAll(id))]);
		if (!head) return null;
		return { ...head, messages: Object.fromEntries(all.map(({ conversation: _, ...message }) => [message.id, message])) };
	}

	/** Keeps a conversation's head, and those of its messages that have changed. */
	async save({ messages: all, ...head }, changed = Object.values(all)) {
		const { conversations, messages, done } = this.#open('readwrite');
		conversations.put(head);
		for (const message of changed) messages.put({ ...message, conversation: head.id });
		await done;
	}

	async remove(id) {
		const { conversations, messages, done } = this.#open('readwrite');
		conversations.delete(id);
		for (const key of await result(messages.index('conversation').getAllKeys(id))) messages.delete(key);
		await done;
	}

	async clear() {
		const { conversations, messages, done } = this.#open('readwrite');
		conversations.clear();
		messages.clear();
		await done;
	}

	/** The ids of the conversations that have a text in their title or in a message. */
	async search(text) {
		const wanted = text.toLowerCase();
		const { conversations, messages } = this.#open();
		const found = new Set();
		for (const head of await result(conversations.getAll())) if (has(head.title, wanted)) found.add(head.id);
		await new Promise((resolve, reject) => {
			const request = messages.openCursor();
			request.onerror = () => reject(request.error);
			request.onsuccess = () => {
				const cursor = request.result;
				if (!cursor) return resolve();
				if (has(cursor.value.content, wanted)) found.add(cursor.value.conversation);
				cursor.continue();
			};
		});
		return found;
	}
}

class MemoryStore {
	isKept = false;
	#all = new Map();

	list = async () => [...this.#all.values()].sort(isNewer);
	load = async (id) => this.#all.get(id) ?? null;
	save = async (conversation) => void this.#all.set(conversation.id, conversation);
	remove = async (id) => void this.#all.delete(id);
	clear = async () => this.#all.clear();

	async search(text) {
		const wanted = text.toLowerCase();
		const matches = ({ title, messages }) => has(title, wanted) || Object.values(messages).some((one) => has(one.content, wanted));
		return new Set([...this.#all.values()].filter(matches).map(({ id }) => id));
	}
}
