/** What Markdown becomes before it is shown: strings, and `{ tag, attrs, children }`. Plain data, never changed. */

const NONE = Object.freeze({});

export const node = (tag, children = [], attrs = NONE) => ({ tag, attrs, children });

/** The text of nodes, without their structure. */
export const textOf = (nodes) =>
	nodes.map((one) => (typeof one === 'string' ? one : textOf(one.children))).join('');
