/** The page, put together. */

import { Answers } from './answers.js';
import { Api } from './api.js';
import { ChatView } from './chatview.js';
import { Composer } from './composer.js';
import { addMessage, newConversation, pathOf, pathTo, selectSibling, titleFrom } from './conversation.js';
import { askKey, askText, confirmed, showKeys } from './dialogs.js';
import { announce, byId, download, el, icon, iconButton, newId } from './dom.js';
import { Drawer } from './drawer.js';
import { EngineView } from './engineview.js';
import { failure } from './failures.js';
import { Meters } from './meters.js';
import { Notice } from './notice.js';
import { Panel } from './panel.js';
import { PromptView } from './promptview.js';
import { Server } from './server.js';
import { Settings } from './settings.js';
import { SettingsView } from './settingsview.js';
import { Sidebar } from './sidebar.js';
import { Store } from './store.js';
import { fileName, fromJson, toJson, toMarkdown } from './transfer.js';

const KEYS = [
	['Enter', 'Send the message'],
	['Shift + Enter', 'Begin a new line'],
	['Esc', 'Stop the answer, or close what is open'],
	['/', 'Go to the message box'],
	['Alt + N', 'New chat'],
	['Alt + K', 'Search conversations'],
	['Alt + S', 'Settings'],
	['?', 'This list'],
];

class App {
	constructor(store) {
		this.store = store;
		this.settings = new Settings();
		this.api = new Api(() => this.settings.key);
		this.server = new Server(this.api);
		this.answers = new Answers(this.api, this.settings, store);
		this.conversation = newConversation(newId(), Date.now());
		this.notice = new Notice(this);
		this.chat = new ChatView(this);
		this.composer = new Composer(this);
		this.meters = new Meters();
		this.sidebar = new Sidebar(this);
		this.drawer = new Drawer(byId('sidebar'));
		this.panel = new Panel();
		this.prompt = new PromptView(this);
		this.panel.add('Settings', new SettingsView(this));
		this.panel.add('Prompt', this.prompt);
		this.panel.add('Engine', new EngineView(this));
		this.#addTop();
		this.#listen();
	}

	async start() {
		this.server.check();
		const id = location.hash.slice(1);
		if (!id) this.#shown();
		this.composer.focus();
		if (!(await this.store.isKept())) this.notice.unsaved('This browser does not let the page keep conversations: they are gone when it is closed.');
		await this.open(id);
	}

	// Messages.

	send(text) {
		const { conversation } = this;
		const last = pathOf(conversation).at(-1);
		if (this.answers.activeIn(pathOf(conversation))) return;
		this.#say(conversation, last?.id ?? '', text);
	}

	edit(message, text) {
		this.#say(this.conversation, message.parent, text);
		this.composer.focus();
	}

	#say(conversation, parent, content) {
		const message = addMessage(conversation, { id: newId(), parent, role: 'user', content, created: Date.now() });
		conversation.title ||= titleFrom(content);
		return this.#answer(conversation, message.id, [message]);
	}

	/** Answers at once; what was `said` is kept meanwhile. */
	async #answer(conversation, parent, said = []) {
		const message = addMessage(conversation, { id: newId(), parent, role: 'assistant', content: '', created: Date.now() });
		const ended = this.answers.start(conversation, pathTo(conversation, parent), message);
		await this.#keep(conversation, [...said, message]);
		await ended;
	}

	regenerate(message) {
		return this.#answer(this.conversation, message.parent);
	}

	/** Tries once more: in the same place if nothing had come. */
	retry(message) {
		if (message.content) return this.regenerate(message);
		return this.answers.start(this.conversation, pathTo(this.conversation, message.parent), message);
	}

	goOn(message) {
		return this.answers.start(this.conversation, pathTo(this.conversation, message.parent), message, { continues: true });
	}

	stop() {
		const active = this.answers.activeIn(pathOf(this.conversation));
		if (active) this.answers.stop(active.id);
	}

	selectBranch(message, step) {
		const id = selectSibling(this.conversation, message.id, step);
		if (id === null) return;
		this.store.save(this.conversation, []);
		this.#shown();
		const [previous, next] = this.chat.viewOf(id).foot.querySelectorAll('.branches button');
		(step < 0 && !previous.disabled ? previous : next.disabled ? previous : next).focus();
	}

	showPrompt(message) {
		this.panel.open('Prompt');
		this.prompt.show({ messages: this.settings.messagesFor(pathTo(this.conversation, message.parent)) });
	}

	/** The body whose prompt is of interest now: the conversation, and what is being written. */
	promptOfNow() {
		const path = pathOf(this.conversation);
		if (path.at(-1)?.role === 'assistant' && !this.composer.draft.value.trim()) path.pop();
		const draft = this.composer.draft.value.trim();
		if (draft) path.push({ role: 'user', content: draft });
		return path.length ? { messages: this.settings.messagesFor(path) } : null;
	}

	async enterKey(message = null) {
		for (let isWrong = false; ; isWrong = true) {
			const answer = await askKey(this.settings.key, this.settings.keepKey, isWrong);
			if (answer === null) return;
			this.settings.setKey(answer.key, answer.keep);
			if (await this.server.takesKey()) break;
		}
		if (message) await this.retry(message);
	}

	// Conversations.

	newChat() {
		this.#become(newConversation(newId(), Date.now()));
		this.composer.focus();
	}

	async open(id) {
		const conversation = await this.#get(id);
		if (!conversation) return this.#shown();
		for (const message of Object.values(conversation.messages)) {
			const isLost = message.status === 'running' && !this.answers.runOf(message.id);
			if (isLost) Object.assign(message, { status: 'failed', failure: failure('broken') });
		}
		this.#become(conversation);
	}

	#become(conversation) {
		this.conversation = conversation;
		this.drawer.close();
		this.#shown();
		this.sidebar.refresh();
	}

	/** The conversation that is shown, and those with an answer under way. */
	#inMemory = () => [this.conversation, ...this.answers.conversations()];

	/** A conversation, or null: it may have been deleted in another window. */
	async #get(id) {
		const conversation = this.#inMemory().find((one) => one.id === id) ?? (await this.store.load(id));
		if (!conversation) await this.sidebar.refresh();
		return conversation;
	}

	async rename(id) {
		const conversation = await this.#get(id);
		const title = conversation && (await askText('Rename the conversation', 'Title', conversation.title, 'Rename'));
		if (!title) return;
		conversation.title = title;
		await this.store.save(conversation, []);
		this.#showTitle();
		await this.sidebar.refresh();
	}

	async remove(id) {
		const conversation = await this.#get(id);
		if (!conversation || !(await confirmed('Delete this conversation?', `“\u2068${conversation.title}\u2069” and all its messages will be gone.`, 'Delete'))) return;
		this.#letGo(conversation);
		await this.store.remove(id);
		if (id === this.conversation.id) this.newChat();
		else await this.sidebar.refresh();
		announce('Deleted');
	}

	async clearAll() {
		const text = 'All conversations in this browser will be gone. Export them first if you want to keep them.';
		if (!(await confirmed('Delete all conversations?', text, 'Delete all'))) return;
		this.#inMemory().forEach((one) => this.#letGo(one));
		await this.store.clear();
		this.newChat();
		announce('All conversations are deleted');
	}

	/** Ends the answers of a conversation, and sees to it that they do not bring it back. */
	#letGo(conversation) {
		conversation.isRemoved = true;
		for (const message of Object.keys(conversation.messages)) this.answers.stop(message);
	}

	async exportOne(id, ending) {
		const conversation = await this.#get(id);
		if (!conversation) return;
		const name = fileName(conversation.title, ending);
		if (ending === 'md') download(name, 'text/markdown', toMarkdown(conversation));
		else download(name, 'application/json', toJson([conversation]));
	}

	async exportAll() {
		const heads = await this.store.list();
		const all = await Promise.all(heads.map(({ id }) => this.#get(id)));
		download('tinyllm-conversations.json', 'application/json', toJson(all.filter(Boolean)));
	}

	importFile() {
		const input = el('input', { type: 'file', accept: '.json,application/json', onchange: async () => {
			try {
				const conversations = fromJson(await input.files[0].text(), newId);
				for (const conversation of conversations) await this.store.save(conversation);
				this.notice.say(`${conversations.length === 1 ? 'One conversation was' : `${conversations.length} conversations were`} imported.`);
				await this.sidebar.refresh();
			} catch (error) {
				this.notice.say(error.message);
			}
		} });
		input.click();
	}

	showKeys() {
		showKeys(KEYS);
	}

	// What is shown.

	#shown() {
		const { id, title } = this.conversation;
		history.replaceState(null, '', title ? `#${id}` : location.pathname);
		this.chat.show();
		this.#showTitle();
		this.#showState();
	}

	#showTitle() {
		const { title } = this.conversation;
		byId('title').textContent = title || 'New chat';
		document.title = title ? `${title} · tinyllm` : 'tinyllm';
	}

	#showState() {
		this.composer.setRunning(this.answers.activeIn(pathOf(this.conversation)) !== null);
		this.showMeters();
	}

	showMeters() {
		this.meters.show(pathOf(this.conversation), this.server.props?.max_model_len ?? null);
	}

	async #keep(conversation, messages) {
		conversation.updated = Date.now();
		if (conversation === this.conversation) {
			this.#shown();
			this.chat.follow.toEnd();
		}
		await this.store.save(conversation, messages);
		await this.sidebar.refresh();
	}

	#addTop() {
		byId('top-left').append(iconButton('menu', 'Show conversations', () => this.drawer.open(), { 'aria-controls': 'sidebar' }));
		for (const [symbol, label] of [['eye', 'Prompt'], ['pulse', 'Engine'], ['sliders', 'Settings']]) {
			byId('top-right').append(el('button.button.quiet', { 'aria-label': label, 'aria-controls': 'panel', onclick: () => this.panel.toggle(label) }, icon(symbol), el('span', label)));
		}
	}

	#listen() {
		this.answers.addEventListener('state', ({ detail }) => {
			this.#showState();
			if (detail.failure) this.server.check();
		});
		this.store.addEventListener('unsaved', () => this.notice.unsaved());
		addEventListener('unhandledrejection', ({ reason }) => this.notice.say(`This did not work: ${reason?.message ?? reason}`));
		addEventListener('hashchange', () => this.open(location.hash.slice(1)));
		this.server.addEventListener('change', () => {
			if (!pathOf(this.conversation).length) this.chat.show();
			this.showMeters();
		});
		document.addEventListener('keydown', (event) => this.#pressed(event));
	}

	#pressed(event) {
		if (event.isComposing || document.querySelector('dialog, [role="menu"]')) return;
		const isTyping = event.target.closest('input, textarea, select');
		if (event.key === 'Escape') {
			if (this.drawer.isOpen) this.drawer.close();
			else this.stop();
		} else if (event.altKey && !event.ctrlKey && !event.metaKey) {
			const action = { KeyN: () => this.newChat(), KeyK: () => this.#search(), KeyS: () => this.panel.toggle('Settings') }[event.code];
			if (!action) return;
			event.preventDefault();
			action();
		} else if (!isTyping && !event.ctrlKey && !event.metaKey && (event.key === '/' || event.key === '?')) {
			event.preventDefault();
			if (event.key === '/') this.composer.focus();
			else this.showKeys();
		}
	}

	#search() {
		this.drawer.open();
		byId('search').focus();
	}
}

new App(new Store()).start();
