/** Just enough of a DOM for the Markdown builder, so that its tests need no browser. */

class FakeNode {
  childNodes = [];
  parent = null;

  get textContent() {
    return this.childNodes.map((child) => child.textContent).join('');
  }

  insertBefore(child, next) {
    const at = next === null ? this.childNodes.length : this.childNodes.indexOf(next);
    if (at < 0) throw new Error('insertBefore: no such child');
    this.childNodes.splice(at, 0, child);
    child.parent = this;
    return child;
  }

  appendChild(child) {
    return this.insertBefore(child, null);
  }

  removeChild(child) {
    const at = this.childNodes.indexOf(child);
    if (at < 0) throw new Error('removeChild: no such child');
    this.childNodes.splice(at, 1);
    return child;
  }

  replaceChild(child, old) {
    const at = this.childNodes.indexOf(old);
    if (at < 0) throw new Error('replaceChild: no such child');
    this.childNodes[at] = child;
    return old;
  }

  replaceChildren(...children) {
    this.childNodes = [];
    for (const child of children) this.appendChild(child);
  }
}

class FakeText extends FakeNode {
  constructor(data) {
    super();
    this.data = data;
  }

  get textContent() {
    return this.data;
  }

  appendData(more) {
    this.data += more;
  }
}

class FakeElement extends FakeNode {
  attributes = new Map();

  constructor(tagName) {
    super();
    this.tagName = tagName;
  }

  setAttribute(name, value) {
    this.attributes.set(name, value);
  }
}

export const fakeDocument = {
  createElement: (tag) => new FakeElement(tag),
  createTextNode: (data) => new FakeText(data),
};

/** A tree as text, to compare and to read. Not HTML that a browser would see. */
export function outline(node) {
  if (node instanceof FakeText) return node.data.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
  const inner = node.childNodes.map(outline).join('');
  const attributes = [...node.attributes].map(([name, value]) => ` ${name}="${value}"`).join('');
  return `<${node.tagName}${attributes}>${inner}</${node.tagName}>`;
}

/** Every element below a node. */
export function* elementsOf(node) {
  for (const child of node.childNodes) {
    if (child instanceof FakeElement) yield child;
    yield* elementsOf(child);
  }
}
