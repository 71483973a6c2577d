// The test strings: fixed lists, systematic products, and random mixes from a fixed seed. Same output on every run.

function random(seed) {  // mulberry32
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const prose = [
  'Hello, world!', 'The quick brown fox jumps over the lazy dog.', "I'm sure they've gone; she'll say we'd better wait, won't she?",
  'Once upon a time there was a little girl who lived near the forest.', 'To be, or not to be: that is the question.',
  'À la recherche du temps perdu, où l’été s’achève déjà.', 'Größe, Straße, Übermut, ẞ und äöü ÄÖÜ.', 'El niño comió jalapeños en el jardín, ¿verdad? ¡Sí!',
  'Zażółć gęślą jaźń.', 'Příliš žluťoučký kůň úpěl ďábelské ódy.', 'Árvíztűrő tükörfúrógép', 'İstanbul’da ılık ışık, ŞĞÜÖÇ şğüöç', 'Đặng Thị Ngọc Thịnh đã đến Hà Nội.',
  'Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΟΔΥΣΣΕΥΣ', 'Съешь же ещё этих мягких французских булок, да выпей чаю.', 'Щастя-доля, їжак, ґанок і єнот', 'Љубазни фењерџија чађавог лица',
  'مرحبا بالعالم! كيف حالك اليوم؟', 'بِسْمِ ٱللَّهِ ٱلرَّحْمَٰنِ ٱلرَّحِيمِ', 'شلوار پشمی‌ام کجاست؟ می‌خواهم', 'שלום עולם, מה שלומך?', 'בְּרֵאשִׁית בָּרָא אֱלֹהִים',
  'नमस्ते दुनिया, आप कैसे हैं?', 'क्षत्रिय ज्ञान श्रीमान् हिन्दी', 'আমার সোনার বাংলা, আমি তোমায় ভালোবাসি।', 'தமிழ் மொழி மிகவும் பழமையானது', 'తెలుగు భాష చాలా మధురం', 'ಕನ್ನಡ ನಾಡು', 'മലയാളം ഭാഷ', 'ਪੰਜਾਬੀ ਬੋਲੀ', 'ગુજરાતી ભાષા', 'සිංහල අකුරු', 'සත්‍ය',
  'สวัสดีชาวโลก วันนี้อากาศดีมาก', 'ภาษาไทยไม่มีช่องว่างระหว่างคำ', 'ສະບາຍດີຊາວໂລກ', 'မင်္ဂလာပါ ကမ္ဘာလောက', 'សួស្តី​ពិភពលោក', 'བོད་སྐད་ཀྱི་ཡི་གེ', 'ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ᠌',
  '你好，世界！今天天气怎么样？', '从前有一座山，山里有一座庙，庙里有个老和尚。', '繁體中文與簡體中文', '㐀㐁𠀀𠀁𪛖', '「日本語」の文章です。カタカナ、ひらがな、漢字。', 'ｶﾀｶﾅ ﾊﾝｶｸ ＡＢＣ１２３', '東京都庁は新宿区にあります。ヶ月〆々〻', 'ゝゞヽヾ゛゜ー',
  '안녕하세요 세계! 오늘 날씨가 좋네요.', '한국어 형태소 분석', '\u1112\u1161\u11ab\u1100\u116e\u11a8', '\u3131\u3132\u314f ㅋㅋㅋㅋ ㅠㅠ', 'ㄅㄆㄇㄈ ㄚㄛㄜ',
  'გამარჯობა მსოფლიო', 'Բարեւ աշխարհ', 'ሰላም ልዑል', 'ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ', 'ⵜⴰⵎⴰⵣⵉⵖⵜ', 'ꦧꦱꦗꦮ', '𐎠𐎡𐎢 𐤀𐤁𐤂 𓀀𓀁𓂀', '𝓗𝓮𝓵𝓵𝓸 𝔽𝕠𝕠 𝟘𝟙𝟚', 'Ｆｕｌｌｗｉｄｔｈ　ｔｅｘｔ', 'ﬁ ﬂ ﬀ ﬃ ŉ ǆ Ǆ ǅ', 'ʰʷˠ ᵃᵇᶜ ₐₑₒ ¹²³⁴ ₁₂₃', 'Ⅷ ⅷ Ⓐ ⓐ ㊀ ① ⑳ ⒈', '½ ¼ ¾ ⅓ ⅛ ‰ ‱ №5 ℃ Å K Ω', 'ſtraße Kelvin\u212A \u017F',
  '٠١٢٣٤٥٦٧٨٩', '०१२३४५६७८९', '๐๑๒๓๔๕๖๗๘๙', '〇一二三四五六七八九十百千万億', '១២៣', '𝟎𝟏𝟐𝟑',
];

const code = [
  'def read_file(path):\n    """Read a file."""\n    with open(path, "rb") as f:\n        return f.read()\n', 'lambda (x):\n    return x->y', '(x):\n', '->', 'a->b', 'f(x) -> int:', 'for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n',
  '#include <vector>\nstd::vector<std::pair<int, float>> v{{1, 2.5f}};\n', 'template <class T> auto f(T&& t) -> decltype(t());', 'fn main() { println!("{:?}", vec![1u8, 2]); }', "let s: &'static str = \"x\";", 'impl<T: Send + \'static> Foo for Bar<T> where T: Copy {}',
  'const f = async (a, b) => { await g(a ?? b); };\r\n', 'if (a !== b && !c || d) { return `x${y}z`; }', 'SELECT * FROM t WHERE a = \'b\'\'c\' AND d <> 5;', '<div class="a b" id=\'c\'>&nbsp;&lt;p&gt;</div>\n', '{"key": [1, 2.0, -3e-10, null, true], "a\\u00e9": "\\n"}',
  'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("hi")\n}\n', 'public static void main(String[] args) throws Exception {', 'x = y if z else w  # comment', 'echo "$HOME/${VAR:-x}" | sed -e \'s/a/b/g\' >> out.txt 2>&1', 'git commit -m "fix: it\'s done" && git push', 'CC=gcc make -j8 CFLAGS="-O2 -g"', '0x1F 0b1010 0o17 1_000_000 1e-9 3.14159f 0XDEADBEEFull',
  'snake_case camelCase PascalCase SCREAMING_SNAKE kebab-case dotted.name', 'HTTPServer parseJSONResponse getURLForID iPhone12ProMax', 'a+b-c*d/e%f^g&h|i~j!k=l<m>n?o:p;q,r.s', '/* comment */ // line\n# hash\n-- sql\n', '@decorator\nclass A(B, metaclass=C):\n    __slots__ = ()\n', '\\begin{equation} \\frac{a}{b} \\leq \\sum_{i=1}^{n} x_i \\end{equation}',
  'http://example.com/a?b=c&d=%20e#f', 'user.name+tag@example.co.uk', 'C:\\Users\\x\\file.txt', '/usr/local/bin:/usr/bin', '$1,234.56 €99,99 £5 ¥1000 ₹500 ₿0.1', '2024-02-29T23:59:60Z 12:34:56.789', '+1 (555) 123-4567', '192.168.0.1/24 ::1 fe80::1%eth0', 'v1.2.3-rc.4+build.5', '```python\nprint("x")\n```\n', '| a | b |\n|---|---|\n| 1 | 2 |\n', '- [x] todo\n  * sub\n    1. item\n', '>>> 1 + 1\n2\n', '==== ---- **** ____ ~~~~ ....', '!!! ??? ?! !? ... … —— –– ‘’ “” «» ‹› „‟',
];

const emoji = ['😀', '😂🤣', '👍🏽', '👩🏿‍🚀', '👨‍👩‍👧‍👦', '🏳️‍🌈', '🏴󠁧󠁢󠁥󠁮󠁧󠁿', '🇩🇪🇯🇵', '🇺', '❤️', '❤', '☺︎', '1️⃣', '#️⃣', '👁️‍🗨️', '🧑🏻‍❤️‍💋‍🧑🏼', '🐻‍❄️', '™️ ©️ ®', '🀄🃏', '♔♕♖', '→←↑↓⇒', '▁▂▃▄', '█▓▒░', '①②③', '♪♫', '∀x∈ℝ∃y', '∑∏∫√∞≈≠≤≥', '🤷🏾‍♀️ idk', 'ok👌ok', '😀😀😀😀😀😀😀😀'];

const marks = ['e\u0301', '\u00e9', 'a\u0323\u0302', 'a\u0302\u0323', '\u1ead', 'o\u031b\u0301', '\u212b', '\u2126', '\u0344', '\u0958', '\u0915\u093c', '\u0b47\u0b3e', '\u1025\u102e', '\u0308\u0301', '\u0301', ' \u0301', 'x\u0301\u0327\u0323\u0345', '\u1100\u1161', '\u1100\u1161\u11a8', '\uac00\u11a8', '\u0f71\u0f72\u0f74', '\u2adc', '\ufb1d', '\u0340\u0341', '\u1e9b\u0323', '\u01d5', 'u\u0308\u0304', '\u0041\u030a', 'q\u0307\u0323', 'q\u0323\u0307', 'n\u0303o', 'Z\u0351\u0327\u0322\u0334a\u0300\u0316l\u0359g\u0321\u0335o\u0338', '\u05e9\u05c1\u05bc', '\u0651\u0650\u0651', '\u3099\u304b', '\u304b\u3099', '\u30cf\u309a', '\u00b5', '\u03bc', '\ufb01', '\u00bd', '\ufdfa', '\u2460', '\uff21', '\u00a8', '\u037e', '\u0387', '\u1fee', '\u2000', '\u2001'];

const spaces = [' ', '  ', '   ', '    ', '\t', '\t\t', '\n', '\n\n', '\r\n', '\r', '\u00a0', '\u2003', '\u2009', '\u3000', '\u200b', '\u200d', '\u200c', '\ufeff', '\u0085', '\u2028', '\u2029', '\u180e', '\u1680', '\u202f', '\u205f', '\u2060', '\u00ad', '\v', '\f', ' \n', '\n ', ' \t ', '\n\n\n', ' \r\n ', '\x1c', '\x1f'];

const words = ['the', 'The', ' the', 'a', 'I', 'hello', 'World', 'ing', 'tion', 'pre', 'un', 'é', 'ü', 'ß', 'привет', 'мир', '世界', '中', 'の', 'カ', '한', '글', 'ا', 'لا', 'ש', 'हि', 'ไทย', '1', '12', '123', '1234', '12345678', '0', '3.14', "'s", "'S", '’s', "'t", "'LL", "'re", "'ve", "'d", "'m", "'x", '"', "'", '.', ',', ':', ';', '!', '?', '(', ')', '[', ']', '{', '}', '<', '>', '/', '\\', '|', '-', '--', '->', '=>', '==', '+=', '_', '__', '#', '@', '$', '%', '^', '&', '*', '~', '`', '…', '—', '«', '»', '。', '，', '！', '😀', '👍🏽', '\u0301', '\u200d', '\ufe0f', '½', '²', 'Ⅷ', '▁', 'Ġ', 'Ċ', 'â', '<0x0A>', '<0xE2>', '\x00', '\x07', '\x1b[0m', '\x7f'];

const specials = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<think>', '</think>', '<tool_call>', '<|fim_prefix|>', '<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>', '<｜User｜>', '<｜Assistant｜>', '<｜▁pad▁｜>', '<｜tool▁sep｜>', '<|EOT|>', '<｜place▁holder▁no▁1｜>', '<｜place▁holder▁no▁12｜>', '<|start|>', '<|channel|>', '<|message|>', '<|end|>', '<|return|>', '<|call|>', '<|startoftext|>', '<|reserved_200017|>', '<|endofprompt|>', '<s>', '</s>', '<unk>', '<0x41>', '<|im_start', '|im_end|>', '<|im_end|', '<<|im_end|>>', '[INST]', '[/INST]', '<|eot_id|>'];

// Scripts as ranges whose assigned characters predate Unicode 14, so that every library knows them.
const ranges = [[0x20, 0x7e], [0xa0, 0x17f], [0x180, 0x24f], [0x250, 0x2ff], [0x300, 0x36f], [0x370, 0x3ff], [0x400, 0x4ff], [0x531, 0x556], [0x591, 0x5c7], [0x5d0, 0x5ea], [0x620, 0x669], [0x671, 0x6d3], [0x904, 0x939], [0x93c, 0x94d], [0x985, 0x9b9], [0xa05, 0xa39], [0xb85, 0xbb9], [0xc05, 0xc39], [0xe01, 0xe3a], [0xe40, 0xe5b], [0xf40, 0xf6c], [0x1000, 0x104f], [0x10a0, 0x10ff], [0x1100, 0x11ff], [0x1200, 0x1248], [0x13a0, 0x13f5], [0x1780, 0x17dd], [0x1820, 0x1877], [0x1d00, 0x1dbf], [0x1e00, 0x1fff], [0x2000, 0x206f], [0x2070, 0x209c], [0x20a0, 0x20bf], [0x2100, 0x218b], [0x2190, 0x23ff], [0x2460, 0x24ff], [0x2500, 0x27bf], [0x2c60, 0x2c7f], [0x3000, 0x303f], [0x3041, 0x3096], [0x30a0, 0x30ff], [0x3105, 0x312f], [0x3131, 0x318e], [0x3200, 0x32fe], [0x3400, 0x4dbf], [0x4e00, 0x9fa5], [0xa000, 0xa48c], [0xac00, 0xd7a3], [0xf900, 0xfa6d], [0xfb00, 0xfb4f], [0xfe30, 0xfe6b], [0xff01, 0xffee], [0x10000, 0x1005d], [0x10400, 0x1044f], [0x12000, 0x12399], [0x13000, 0x1342e], [0x1d400, 0x1d7ff], [0x1f300, 0x1f64f], [0x1f680, 0x1f6c5], [0x20000, 0x2a6d6]];

export function make_strings() {
  const next = random(20250917);
  const pick = (list) => list[Math.floor(next() * list.length)];
  const out = [''];
  out.push(...prose, ...code, ...emoji, ...marks, ...spaces, ...words, ...specials);
  for (let b = 0; b < 0xa0; ++b) if (b < 0x20 || b >= 0x7f) out.push('a' + String.fromCharCode(b) + 'b');
  for (const a of spaces) for (const b of pick([[' x', 'x '], ['\n', '.'], ['1', ' ']])) out.push(a + b, 'x' + a + b, b + a, a + a + 'y');
  for (let n = 1; n <= 12; ++n) out.push('1234567890123'.slice(0, n), ' ' + '9'.repeat(n), 'x' + '0'.repeat(n) + 'y', '٣'.repeat(n));
  for (const quote of ["'", '’']) for (const tail of ['s', 'S', 't', 'T', 're', 'RE', 'Re', 've', 'VE', 'm', 'M', 'll', 'LL', 'lL', 'd', 'D', 'ſ', 'x', 'ss', 'are']) out.push('it' + quote + tail, quote + tail + ' a', 'IT' + quote + tail + 'Z');
  for (const special of specials) out.push('a' + special + 'b', ' ' + special + ' ', special + special, 'x ' + special + '\n y', special + ' The', '  ' + special.slice(0, -1));
  for (const unit of ['a', 'ab', ' ', '\n', '-', '=', '1', 'é', '中', '한', '😀', '\u0301', 'ha', '\t', '. ', '\r\n', '　', '!?']) for (const n of [17, 64, 257]) out.push(unit.repeat(n));
  for (const [low, high] of ranges) {
    for (let k = 0; k < 8; ++k) {
      let text = '';
      while ([...text].length < 6 + k) {
        const c = String.fromCodePoint(low + Math.floor(next() * (high - low + 1)));
        if (/\p{Assigned}/u.test(c)) text += c;
        if (next() < 0.15) text += ' ';
      }
      out.push(text);
    }
  }
  const pools = [prose, code, emoji, marks, spaces, words, specials];
  while (out.length < 2600) {
    let text = '';
    const parts = 2 + Math.floor(next() * 7);
    for (let i = 0; i < parts; ++i) {
      const pool = next() < 0.6 ? pick([words, spaces, marks]) : pick(pools);
      let piece = pick(pool);
      if ([...piece].length > 24) {
        const points = [...piece];
        const begin = Math.floor(next() * (points.length - 12));
        piece = points.slice(begin, begin + 12).join('');
      }
      text += piece;
    }
    out.push(text);
  }
  return [...new Set(out)].map((s) => s.toWellFormed ? s.toWellFormed() : s);
}
