/** The settings as a form. What is typed holds at once. */

import { askText } from './dialogs.js';
import { button, el } from './dom.js';
import { FIELDS, parseField } from './settings.js';

export class SettingsView {
	#inputs = new Map();

	constructor(app) {
		this.app = app;
		const { settings } = app;
		this.preset = el('select', { onchange: () => this.#apply() });
		this.remove = button('Delete preset', () => this.#removePreset(), { class: 'button quiet' });
		this.system = this.#area('system', 'The model’s own, if any', 4);
		this.stop = this.#area('stop', 'One text a line', 2);
		this.stream = el('input', { type: 'checkbox', onchange: () => settings.change({ stream: this.stream.checked }) });
		this.keyNote = el('span.help');
		this.element = el('div.settings',
			el('label.field', 'System prompt', this.system),
			el('fieldset', el('legend', 'Sampling'),
				el('div.preset-row', el('label.field', 'Preset', this.preset), button('Save as…', () => this.#savePreset(), { class: 'button quiet' }), this.remove),
				el('div.grid', FIELDS.map((field) => this.#field(field)))),
			el('label.field', 'Stop texts', this.stop, el('span.help', 'The answer ends before any of these. \\n stands for a line’s end.')),
			el('label.check', this.stream, 'Show the answer while it is made'),
			el('div.key-row', button('API key…', () => app.enterKey()), this.keyNote),
		);
		settings.addEventListener('change', () => this.#show());
		settings.addEventListener('key', () => this.#show());
		app.server.addEventListener('change', () => this.#showDefaults());
		this.#show();
		this.#showDefaults();
	}

	#area(name, placeholder, rows) {
		return el('textarea', { rows, placeholder, dir: 'auto', oninput: ({ target }) => this.app.settings.change({ [name]: target.value }) });
	}

	#field(field) {
		const { name } = field;
		const input = el('input', { id: `field-${name}`, type: 'text', inputmode: field.whole ? 'numeric' : 'decimal', autocomplete: 'off', 'aria-describedby': `help-${name} problem-${name}`, oninput: () => this.#typed(field) });
		this.#inputs.set(name, input);
		return el('div.field', el('label', { for: input.id }, field.label), input, el('span.help', { id: `help-${name}` }, field.help), el('span.problem', { id: `problem-${name}` }));
	}

	#typed(field) {
		const input = this.#inputs.get(field.name);
		const { value, problem = '' } = parseField(field, input.value);
		mark(input, problem);
		if (!problem) this.app.settings.setValue(field.name, value);
	}

	/** Shows what holds, but does not touch a field that is being typed in, or that has to be put right. */
	#show() {
		const { settings } = this.app;
		const put = (input, text) => {
			if (input !== document.activeElement && input.ariaInvalid !== 'true') input.value = text;
		};
		put(this.system, settings.all.system);
		put(this.stop, settings.all.stop);
		for (const [name, input] of this.#inputs) put(input, String(settings.all.values[name] ?? ''));
		this.stream.checked = settings.all.stream;
		this.keyNote.textContent = settings.key ? (settings.keepKey ? 'A key is kept in this browser.' : 'A key is held until the page is closed.') : 'No key is set.';
		this.#showPresets();
	}

	#showPresets() {
		const { settings } = this.app;
		const current = settings.presetName();
		const names = Object.keys(settings.presets());
		const options = [...names, ...(current ? [] : [''])].map((name) => el('option', { value: name, selected: name === current }, name || 'Your own values'));
		this.preset.replaceChildren(...options);
		this.remove.hidden = !Object.hasOwn(settings.all.presets, current);
	}

	#showDefaults() {
		const defaults = this.app.server.props?.sampling_defaults ?? {};
		for (const { name, otherwise = 'default' } of FIELDS) this.#inputs.get(name).placeholder = String(defaults[name] ?? otherwise);
	}

	#apply() {
		const values = this.app.settings.presets()[this.preset.value];
		if (!values) return;
		for (const input of this.#inputs.values()) mark(input, '');
		this.app.settings.change({ values: { ...values } });
	}

	async #savePreset() {
		const { settings } = this.app;
		const name = await askText('Save these values', 'Name', '', 'Save');
		if (!name) return;
		settings.change({ presets: { ...settings.all.presets, [name]: { ...settings.all.values } } });
	}

	#removePreset() {
		const { settings } = this.app;
		const { [settings.presetName()]: _, ...presets } = settings.all.presets;
		settings.change({ presets });
	}
}

/** Says beside a field what is wrong with it, if anything. */
function mark(input, problem) {
	input.parentElement.lastChild.textContent = problem;
	input.ariaInvalid = String(problem !== '');
}
