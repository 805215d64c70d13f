"""Some 600 texts of every awkward kind, the same on each run."""

from __future__ import annotations

import random

__all__ = ["STRINGS", "TEXTS_BY_KIND"]

CODE = [
    "def f(x):\n    return x**2  # square\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }\n",
    "SELECT name, COUNT(*) FROM users WHERE id >= 42 GROUP BY 1;",
    '{"a": [1, 2.5, -3e-7], "b": null, "c": "x\\ny"}',
    "<div class='a' id=\"b\">&amp; &lt;</div>",
    '\tif err != nil {\n\t\treturn fmt.Errorf("%w: %s", err, s)\n\t}\r\n',
    "let r#type = &'a str; // lifetimes 'a 'static",
    "$ curl -sS https://example.com/?q=a%20b | jq '.[0]'",
    "x = lambda *a, **k: (a, k); y = f'{x!r:>10}'",
    '#!/bin/sh\nset -eu\nfor f in *.txt; do echo "$f"; done',
]
PROSE = [
    "Hello, world! It's a test: isn't it? I'll say they've done what we'd do.",
    "I'M SHOUTING, YOU'RE NOT, HE'LL SEE, WE'VE WON",
    "Ça va très bien, merci; où est l'œuvre de Noël?",
    "Größe, Straße, Übermut, ſ, ẞ",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "“Quotes” – dashes — and… ellipses • bullets",
]
CJK = [
    "漢字とひらがなとカタカナ、そして句読点。",
    "我能吞下玻璃而不伤身体。",
    "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요",
    "ｶﾞｷﾞｸﾞ ＡＢＣ１２３",
    "㍿ ㊙ 𠮷野家 𩸽",
    "中文English混排123数字",
]
EMOJI = [
    "🦙 😀😁😂🤣",
    "👨‍👩‍👧‍👦 family, 👩🏽‍💻 skin, 🏳️‍🌈 flag",
    "🇨🇿🇯🇵🇺🇸 flags",
    "❤️ ☺︎ ☎️ 1️⃣ #️⃣",
    "a🦙b🦙c",
    "🫠🫡🪿🩷",
]
RIGHT_TO_LEFT = [
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "שלום עולם! מה שלומך?",
    "\u202bעברית\u202c mixed \u200fRTL\u200e",
    "الْعَرَبِيَّة مُشَكَّلَة",
]
COMBINING = [
    "e\u0301 vs é, n\u0303 vs ñ, A\u030a vs Å",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "हिन्दी में लिखा हुआ",
    "ภาษาไทยไม่มีเว้นวรรค",
    "நான் கண்ணாடி சாப்பிடுவேன்",
    "ﬁ ﬂ ﷺ Ⅷ ½ ² ㎏",
    "\u1100\u1161\u11a8 가각",
]
CONTROL = [
    "\x00",
    "a\x00b\x01c\x02\x1b[31mred\x1b[0m\x7f",
    "\ufeffBOM \u200bzero\u200cwidth\u200d \u00ad soft",
    "\u2028line\u2029paragraph\x85next\x0bvt\x0cff",
    "\ue000\uf8ff private \ufffd \uffff \U0010ffff",
    "".join(map(chr, range(0x80, 0xA1))),
]
SPECIAL = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|endoftext|>",
    "text<|im_end|>text <|im_end|> text",
    "<|im_start|",
    "<|im_start|><|im_start|>x",
    "<think>\nhm\n</think>\n\n<tool_call>{}</tool_call>",
    "<s>[INST] hi [/INST]</s>",
    "<repo_name>a<file_sep>b<filename>c<jupyter_code>d<empty_output>",
    "<|vision_start|><|image_pad|><|vision_end|> <|fim_prefix|>",
    " <|im_end|>\n\n  <|im_end|>  ",
]
RUNS = [
    *(" " * n for n in (1, 2, 3, 4, 7, 8, 15, 16, 31, 64, 129, 1000)),
    *("\n" * n for n in (1, 2, 3, 5, 64)),
    *("\t" * n for n in (1, 2, 9)),
    *("0123456789"[: n % 11] * (n // 3 + 1) for n in (1, 2, 3, 4, 5, 7, 10, 20, 100)),
    "1234567890" * 30,
    "a" * 500,
    "ab" * 500,
    "!" * 200,
    "=-" * 100,
    "\r\n" * 10,
    "漢" * 100,
    "🦙" * 50,
    "\u0301" * 40,
    " \n \n\t \r\n  x",
    "x" + " " * 20 + "y" + "\n" * 4 + "    z",
]
EDGES = ["", " ", "a", " a", "a ", "\n", "\na", "'", "'s", "'S", "¹", "１", "é", "e\u0301", "🦙", "ď", "漢"]

TEXTS_BY_KIND = {
    "code": CODE,
    "prose": PROSE,
    "cjk": CJK,
    "emoji": EMOJI,
    "rtl": RIGHT_TO_LEFT,
    "combining": COMBINING,
    "control": CONTROL,
    "special": SPECIAL,
    "runs": RUNS,
    "edges": EDGES,
}


def _character(rng: random.Random) -> str:
    """Return any character but a surrogate, mostly from the common blocks."""
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x600), (0x900, 0xE80), (0x2000, 0x2C00), (0x3040, 0x9FFF)]
    ranges += [(0xAC00, 0xD7A4), (0xF900, 0xFFFE), (0x10000, 0x11000), (0x1F000, 0x1FB00), (0, 0x20)]
    first, end = rng.choice(ranges)
    return chr(rng.randrange(first, end))


def _made(rng: random.Random) -> list[str]:
    known = [text for texts in TEXTS_BY_KIND.values() for text in texts]
    joined = ["".join(rng.sample(known, 3))[:400] for _ in range(150)]
    cut = [text[rng.randrange(len(text)) :] for text in rng.choices([t for t in known if t], k=100)]
    spaced = [" ".join(rng.choice(known)[:20] for _ in range(4)) for _ in range(100)]
    noise = ["".join(_character(rng) for _ in range(rng.randrange(1, 40))) for _ in range(150)]
    pieces = [" ", "  ", "\n", "\t", "1", "23", "456", "a", "The", ".", "'s", "é", "🦙", "漢", "<|im_end|>"]
    mixed = ["".join(rng.choices(pieces, k=rng.randrange(2, 12))) for _ in range(100)]
    return known + joined + cut + spaced + noise + mixed


STRINGS: tuple[str, ...] = tuple(dict.fromkeys(_made(random.Random(2024))))
