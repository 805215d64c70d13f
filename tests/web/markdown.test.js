import assert from 'node:assert/strict';
import test from 'node:test';

import { ALLOWED, build } from '../../web/js/markdown/build.js';
import { safeUrl } from '../../web/js/markdown/links.js';
import { parseMarkdown } from '../../web/js/markdown/parse.js';
import { MarkdownView } from '../../web/js/markdown/view.js';
import { elementsOf, fakeDocument, outline } from './dom.js';
import { hostileStrings, piecesOf } from './hostile.js';
import { makeRandom } from './random.js';

globalThis.document = fakeDocument;

/** What a text looks like, without the attributes that all elements have. */
function show(text, open = false) {
  const root = fakeDocument.createElement('root');
  for (const one of parseMarkdown(text, open)) root.appendChild(build(one));
  return plain(root);
}

const plain = (root) =>
  outline(root)
    .replace(/ (dir|target|rel|tabindex|role|aria-label|scope|type)="[^"]*"/g, '')
    .replace(/^<root>|<\/root>$/g, '');

const CASES = [
  ['plain', 'a\nb', '<p>a\nb</p>'],
  ['two paragraphs', 'a\n\nb', '<p>a</p><p>b</p>'],
  ['headings', '# A\n### B ##\n#no', '<h3>A</h3><h5>B</h5><p>#no</p>'],
  ['headings with marks', '# #\n## a # b\n#\tc ###\n####### d', '<h3></h3><h4>a # b</h4><h3>c</h3><p>####### d</p>'],
  ['emphasis', '*a* **b** ***c*** _d_ __e__ ~~f~~', '<p><em>a</em> <strong>b</strong> <strong><em>c</em></strong> <em>d</em> <strong>e</strong> <del>f</del></p>'],
  ['nested emphasis', '**a *b* c**', '<p><strong>a <em>b</em> c</strong></p>'],
  ['emphasis at an end', '*a **b***', '<p><em>a <strong>b</strong></em></p>'],
  ['no emphasis', '2 * 3 * 4, snake_case_name, a ** b', '<p>2 * 3 * 4, snake_case_name, a ** b</p>'],
  ['escapes', '\\*a\\* \\q', '<p>*a* \\q</p>'],
  ['code', '`a *b*` `` `c` ``', '<p><code>a *b*</code> <code>`c`</code></p>'],
  ['breaks', 'a  \nb\\\nc', '<p>a<br></br>b<br></br>c</p>'],
  ['link', '[a **b**](https://x.example/y "t")', '<p><a href="https://x.example/y">a <strong>b</strong></a></p>'],
  ['link with brackets', '[a](https://x.example/(b))', '<p><a href="https://x.example/(b)">a</a></p>'],
  ['bare link', 'see https://x.example/a, or (http://y.example).', '<p>see <a href="https://x.example/a">https://x.example/a</a>, or (<a href="http://y.example/">http://y.example</a>).</p>'],
  ['image is a link', '![cat](https://x.example/c.png)', '<p><a href="https://x.example/c.png">cat</a></p>'],
  ['unsafe link', '[a](javascript:alert(1))', '<p>[a](javascript:alert(1))</p>'],
  ['html is text', '<b>x</b>', '<p>&lt;b>x&lt;/b></p>'],
  ['rule', 'a\n\n---\n***', '<p>a</p><hr></hr><hr></hr>'],
  ['quote', '> a\nb\n>\n> c', '<blockquote><p>a\nb</p><p>c</p></blockquote>'],
  ['list', '- a\n- b\n  - c\n  - d\n- e', '<ul><li>a</li><li>b<ul><li>c</li><li>d</li></ul></li><li>e</li></ul>'],
  ['list with blank lines', '1. a\n\n2. b\n\nc', '<ol><li>a</li><li>b</li></ol><p>c</p>'],
  ['list from seven', '7) a\n8) b', '<ol start="7"><li>a</li><li>b</li></ol>'],
  ['list with code', '- a\n  ```\n  x\n    y\n  ```\n- b', '<ul><li>a<figure class="code"><figcaption><span>text</span><button class="copy-code">Copy</button></figcaption><pre><code><span class="line">x\n</span><span class="line">  y\n</span></code></pre></figure></li><li>b</li></ul>'],
  ['list by tabs', '- a\n\t- b', '<ul><li>a<ul><li>b</li></ul></li></ul>'],
  ['a year is not a list', 'it was\n1999. So', '<p>it was\n1999. So</p>'],
  ['table', '| a | b |\n|:-:|--:|\n| 1 \\| 2 | `x|y` |\n| 3 |', '<div class="table"><table><thead><tr><th class="align-center">a</th><th class="align-end">b</th></tr></thead><tbody><tr><td class="align-center">1 | 2</td><td class="align-end"><code>x|y</code></td></tr><tr><td class="align-center">3</td></tr></tbody></table></div>'],
  ['table without outer bars', 'a | b\n:-- | -\n1 | 2\n\na | b\n-- | x', '<div class="table"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div><p>a | b\n-- | x</p>'],
  ['blank lines of code in a list stay', '- a\n\n  ```\n\n\n  x\n  ```\n\n\n- b', '<ul><li>a<figure class="code"><figcaption><span>text</span><button class="copy-code">Copy</button></figcaption><pre><code><span class="line">\n</span><span class="line">\n</span><span class="line">x\n</span></code></pre></figure></li><li>b</li></ul>'],
  ['fence keeps its tabs', '```\n\tx\n```', '<figure class="code"><figcaption><span>text</span><button class="copy-code">Copy</button></figcaption><pre><code><span class="line">\tx\n</span></code></pre></figure>'],
  ['crlf', 'a\r\n\r\nb', '<p>a</p><p>b</p>'],
];

for (const [name, text, expected] of CASES) test(`markdown: ${name}`, () => assert.equal(show(text), expected));

test('what is not finished looks as it will', () => {
  assert.equal(show('a **b', true), '<p>a <strong>b</strong></p>');
  assert.equal(show('a **b*', true), '<p>a <strong>b</strong></p>');
  assert.equal(show('a **', true), '<p>a </p>');
  assert.equal(show('a `b', true), '<p>a <code>b</code></p>');
  assert.equal(show('see [x](https://exa', true), '<p>see x</p>');
  assert.match(show('| a | b', true), /^<div class="table"><table><thead><tr><th>a<\/th><th>b<\/th>/);
  assert.match(show('| a | b |\n|--', true), /^<div class="table"/);
  assert.match(show('```py\nx = 1', true), /<span>py<\/span>.*x = <span class="t-number">1<\/span>/s);
});

test('what stays unfinished is shown as it was written', () => {
  assert.equal(show('a **b'), '<p>a **b</p>');
  assert.equal(show('a `b'), '<p>a `b</p>');
  assert.equal(show('| a | b'), '<p>| a | b</p>');
});

test('only safe addresses become links', () => {
  assert.equal(safeUrl('https://x.example/ä'), 'https://x.example/%C3%A4');
  assert.equal(safeUrl('mailto:a@x.example'), 'mailto:a@x.example');
  for (const bad of ['javascript:alert(1)', 'java\nscript:x', 'data:text/html,x', '//x.example', '/x', 'x', 'https://a@b.example', 'https://', 'https://a\u0000b']) {
    assert.equal(safeUrl(bad), null, bad);
  }
});

test('the builder makes nothing that is not on the list', () => {
  for (const bad of ['script', 'img', 'iframe', 'style', 'svg', 'constructor', '__proto__', 'SCRIPT']) {
    assert.throws(() => build({ tag: bad, attrs: {}, children: [] }), TypeError);
  }
  for (const attrs of [{ onclick: 'x' }, { style: 'x' }, { href: 'javascript:x' }, { href: ' https://x' }, { constructor: 'x' }]) {
    assert.throws(() => build({ tag: 'a', attrs, children: [] }), TypeError);
  }
});

/** Streams a text in pieces and returns what is there in the end, and at each step. */
function stream(pieces, each = () => {}) {
  const root = fakeDocument.createElement('root');
  const view = new MarkdownView(root);
  let text = '';
  for (const piece of pieces) {
    text += piece;
    view.update(text, true);
    each(root);
  }
  view.update(text, false);
  return root;
}

const FRAGMENTS = [
  '\n', '\n', '\n\n', '- ', '1. ', '2) ', '  ', '    ', '> ', '# ', '```', '```py\n', '~~~', '| a | b |', '|---|---|', '|', '---', '***', '**',
  '*', '_', '`', '[x](', 'https://x.example', ')', 'word', ' ', 'two words', '\\', '<b>', '\t', 'é🎉', '\r\n', ': ', '1999. ', '"""', '/* ', '*/',
];

test('a text that comes in pieces ends up as the same text at once', () => {
  const random = makeRandom(7);
  for (let round = 0; round < 3000; round += 1) {
    const text = Array.from({ length: 2 + random.below(40) }, () => random.pick(FRAGMENTS)).join('');
    const once = stream([text]);
    const pieces = stream(piecesOf(text, random));
    assert.equal(plain(pieces), plain(once), JSON.stringify(text));
    assert.equal(plain(once), show(text), JSON.stringify(text));
  }
});

test('hostile strings stay text, at every step', () => {
  const random = makeRandom(3);
  for (const text of hostileStrings(300)) {
    stream(piecesOf(text, random), (root) => {
      for (const element of elementsOf(root)) {
        assert.ok(Object.hasOwn(ALLOWED, element.tagName), element.tagName);
        for (const [name, value] of element.attributes) assert.match(value, ALLOWED[element.tagName][name]);
      }
    });
  }
});

/** The processor's time, the best of three: others may be at work on the machine. */
function timeOf(action) {
  const took = () => {
    const before = process.cpuUsage();
    action();
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1000;
  };
  let best = took();
  for (let more = 0; more < 2 && best > MOST_TIME; more += 1) best = Math.min(best, took());
  return best;
}

const SIZE = 40_000;
const MOST_TIME = 400; // what is linear takes a few milliseconds, what is quadratic a second

function assertQuick(text, name) {
  for (const open of [false, true]) {
    const took = timeOf(() => parseMarkdown(text, open));
    assert.ok(took < MOST_TIME, `${JSON.stringify(name)} took ${Math.round(took)} ms`);
  }
}

test('no text that repeats takes long', () => {
  const repeated = [
    '[', '![', '*a ', '**a ', '_a ', '`', '``a`', '[a](', '<https://', '> ', '- ', '| ', '~~a', '***a', '\\', 'http://', '1. ', '[a](b "', '#',
    '*a _b ', 'http://a@', '[a](b(c)', '> a\n', '>\n', '- a\n', '-\n\n', '- a\n\n  b\n\n', '  - a\n', '|\n', '|a\n|-\n', '|-\n', '```\n', '~~~a\n\n',
    'a  \n', '*a\n', '# \n', '\t- a\n', '> - a\n', '---\n', '[a](      ', '<https://a\n', '1. a\n2. b\n\n',
  ];
  for (const part of repeated) assertQuick(part.repeat(Math.ceil(SIZE / part.length)), part);
});

test('no text with a long run of one sign takes long', () => {
  const befores = ['', 'a', '# a', '#', '-', '- a\n', '1.', '> ', '|\n-', '|\n|-', '~~~', '```', '`` ', '` ', '[a](', '[a](b', '[a](b "', '<https://', 'https://a', '**', '_', '\\'];
  const runs = [' ', '\t', '\n', '\n ', 'a', '-', '#', '`', '~', '*', '|', '.', '(', ' #'];
  const afters = ['', 'x', '`', '\u2028', '\n- b', ' x)'];
  for (const before of befores) {
    for (const run of runs) {
      for (const after of afters) assertQuick(before + run.repeat(SIZE / run.length) + after, [before, run, after]);
    }
  }
});

test('no text becomes much more than itself', () => {
  const texts = [`${'|a'.repeat(500)}\n${'|-'.repeat(500)}\n${'|\n'.repeat(500)}`, '> '.repeat(1000), '[a](https://b.example)'.repeat(100), '```\na\n```\n'.repeat(100)];
  for (const text of texts) {
    const root = stream([text]);
    assert.ok([...elementsOf(root)].length < 3 * text.length, text.slice(0, 20));
  }
});
