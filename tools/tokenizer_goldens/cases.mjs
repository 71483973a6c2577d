// Configurations of single components and of small whole tokenizers.
const split = (Regex, behavior = 'Isolated', invert = false) => ({ type: 'Split', pattern: { Regex }, behavior, invert });
const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
const sequence = (...pretokenizers) => ({ type: 'Sequence', pretokenizers });
const contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const tail = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

// Patterns as the models' tokenizer.json files have them.
export const family_patterns = {
  llama3: `${contractions}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|${tail}`,
  qwen2: `${contractions}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|${tail}`,
  o200k: "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  tekken: '[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
  bailing: "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
  kimi: "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

export const pretokenizer_cases = [
  ['GPT-2, OLMoE, GPT-NeoX', { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true }],
  ['prefix space', { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }],
  ['Granite, StarCoder', sequence({ type: 'Digits', individual_digits: true }, { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true })],
  ['Llama-3, GLM-4', sequence(split(family_patterns.llama3), bytes)],
  ['Qwen2, Qwen3', split(family_patterns.qwen2)],
  ['gpt-oss o200k_harmony', split(family_patterns.o200k)],
  ['Mistral tekken', split(family_patterns.tekken)],
  ['Ling', split(family_patterns.bailing)],
  ['class intersection', split(family_patterns.kimi)],
  ['DeepSeek-V3', sequence(split('\\p{N}{1,3}'), split('[一-龥぀-ゟ゠-ヿ]+'), split('[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+'))],
  ['DeepSeek-V2', sequence(split('[\r\n]'), split('\\s?\\p{L}+'), split('\\s?\\p{P}+'), split('[一-龥ࠀ-一가-퟿]+'), { type: 'Digits', individual_digits: true }, bytes)],
  ['Metaspace always', { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true }],
  ['Metaspace first', { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false }],
  ['Metaspace never', { type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: true }],
  ['Metaspace first in a sequence', sequence({ type: 'WhitespaceSplit' }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: true })],
  ['Digits runs', { type: 'Digits', individual_digits: false }],
  ['Punctuation', { type: 'Punctuation', behavior: 'Isolated' }],
  ['Punctuation contiguous', { type: 'Punctuation', behavior: 'Contiguous' }],
  ['Whitespace', { type: 'Whitespace' }],
  ['WhitespaceSplit', { type: 'WhitespaceSplit' }],
  ['Removed', split('\\s+', 'Removed')],
  ['Removed inverted', split('\\w+', 'Removed', true)],
  ['MergedWithPrevious', split('\\s', 'MergedWithPrevious')],
  ['MergedWithNext', split('[\\p{P}\\p{S}]', 'MergedWithNext')],
  ['Contiguous', split('[aeiou]', 'Contiguous')],
  ['inverted', split('\\p{L}+', 'Isolated', true)],
  ['string', { type: 'Split', pattern: { String: ' ' }, behavior: 'MergedWithPrevious', invert: false }],
  ['string with regex characters', { type: 'Split', pattern: { String: '.' }, behavior: 'Isolated', invert: false }],
  ['empty matches', split('(?=(\\d{3})+(?!\\d))')],
  ['word boundary', split('\\b')],
  ['anchors', split('^.|.$')],
  ['hex and classes', split('\\h+|[[:punct:]]+|[^\\W\\d_]')],
  ['interval plus', split('\\p{L}{1,2}+')],
  ['script', split('\\p{Han}+|\\p{Cyrillic}+|\\p{^Latin}')],
  ['nested class', split('[a-c[x-z]]+|[^[a-m][\\s]]')],
  ['not space', split('[^\\S\\n]+|\\S')],
];

export const normalizer_cases = [
  { type: 'NFC' }, { type: 'NFD' }, { type: 'NFKC' }, { type: 'NFKD' }, { type: 'Lowercase' },
  { type: 'Strip', strip_left: true, strip_right: true }, { type: 'Strip', strip_left: true, strip_right: false }, { type: 'Strip', strip_left: false, strip_right: true },
  { type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }, { type: 'Replace', pattern: { Regex: '\\s{2,}' }, content: ' ' },
  { type: 'Sequence', normalizers: [{ type: 'NFKC' }, { type: 'Lowercase' }, { type: 'Prepend', prepend: '_' }] },
];

const llama_decoder = { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '▁' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }] };
const lists = [['▁Hello', '▁world', '!'], ['▁▁a', '▁b'], ['<0xE2>', '<0x96>', '<0x81>', 'x'], ['<0xE2>', '<0x96>', 'x', '<0xFF>'], ['<0xF0>', '<0x9F>', '<0x98>', '<0x80>', '<0xC3>'], ['a', '▁', '▁'], ['Ġa', 'Ċ', 'Ã©', 'ð', 'Ł', 'ĺ'], ['▁'], ['<s>', '▁a'], ['  b  ', 'c ']];
export const decoder_cases = [
  { config: llama_decoder, lists },
  { config: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }, lists },
  { config: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true }, lists },
  { config: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: true }, lists },
  { config: { type: 'Strip', content: ' ', start: 1, stop: 2 }, lists },
  { config: { type: 'Replace', pattern: { Regex: 'a|b' }, content: 'X' }, lists },
];

// Small tokenizers: what a whole file can ask for.
const letters = 'abcdefghijklmnopqrstuvwxyzABC0123456789 ▁.,!\'_-<>|/'.split('');
const vocab_of = (...more) => Object.fromEntries([...new Set([...letters, ...more])].map((t, i) => [t, i]));
const merges = [['a', 'b'], ['ab', 'c'], ['b', 'c'], ['h', 'e'], ['l', 'l'], ['he', 'll'], ['hell', 'o'], ['▁', 'a'], ['▁', 'he'], ['c', 'd']];
const merged = merges.map((m) => m.join(''));
const model = (extra, vocab = vocab_of(...merged, '<unk>'), list = merges) => ({ type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ...extra, vocab, merges: list });
const whole = (parts) => ({ version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, ...parts });
const added = (id, content, flags = {}) => ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...flags });
const n = Object.keys(vocab_of(...merged, '<unk>')).length;
const byte_vocab = vocab_of(...merged, '<unk>', ...Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`));
const texts = ['', 'abc', 'abcabc hello', 'éabc', 'éé ab ü', '中文 a', 'hello world', 'a\u0301b', 'x', ' a', '  a b'];
const template = (single, special_tokens) => ({ type: 'TemplateProcessing', single, pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }], special_tokens });

export const small_cases = [
  { name: 'no unk: unknown characters vanish', json: whole({ model: model({}) }), texts },
  { name: 'unk', json: whole({ model: model({ unk_token: '<unk>' }) }), texts },
  { name: 'fused unk', json: whole({ model: model({ unk_token: '<unk>', fuse_unk: true }) }), texts },
  { name: 'byte fallback', json: whole({ model: model({ unk_token: '<unk>', fuse_unk: true, byte_fallback: true }, byte_vocab), decoder: llama_decoder }), texts },
  { name: 'byte fallback without all bytes', json: whole({ model: model({ unk_token: '<unk>', fuse_unk: true, byte_fallback: true }, vocab_of(...merged, '<unk>', '<0xC3>', '<0xA9>')) }), texts: texts.filter((t) => !/é.*ü|ü.*é/.test(t)) },
  { name: 'ignore merges', json: whole({ model: model({ ignore_merges: true }, vocab_of(...merged, 'abcd'), merges) }), texts: ['abcd', 'abcde', 'abc'] },
  { name: 'merges as text', json: whole({ model: model({}, undefined, merges.map((m) => m.join(' '))) }), texts },
  { name: 'a merge given twice', json: whole({ model: model({}, undefined, [...merges, ['a', 'b']]) }), texts: ['abc', 'abab', 'bcab'] },
  { name: 'added tokens', json: whole({ model: model({}), added_tokens: [added(n, '<s>', { special: true }), added(n + 1, '<l>', { lstrip: true }), added(n + 2, '<r>', { rstrip: true, special: true }), added(n + 3, '<b>', { lstrip: true, rstrip: true }), added(n + 4, 'word', { single_word: true }), added(n + 5, '<s>a'), added(vocab_of(...merged, '<unk>').hello, 'hello')] }), texts: ['<s>abc', '<s>', 'a <l> b', 'a <r> b', 'a  <b>  b', ' <b> <b> ', 'word', 'a word b', 'swords', 'word.', 'éword', 'word1', '_word', '<s>ab', '<s><s>a', 'hello<l>hello', '<l', 'a\u3000<l>\u3000b', 'a\n<r>\n\tb', ' <l><r> '] },
  { name: 'normalized added tokens', json: whole({ model: model({}), normalizer: { type: 'Lowercase' }, added_tokens: [added(n, 'HeLLo', { normalized: true }), added(n + 1, '<S>', { special: true }), added(n + 2, 'ABC', { normalized: true, lstrip: true })] }), texts: ['hello', 'HELLO a', '<S>a', '<s>a', 'x abc', 'x ABC', 'hellohello'] },
  { name: 'BOS and EOS', json: whole({ model: model({}), added_tokens: [added(n, '<s>', { special: true }), added(n + 1, '</s>', { special: true })], post_processor: template([{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: '</s>', type_id: 0 } }], { '<s>': { id: '<s>', ids: [n], tokens: ['<s>'] }, '</s>': { id: '</s>', ids: [n + 1], tokens: ['</s>'] } }) }), texts: ['', 'abc', '<s>abc'] },
  { name: 'two tokens in front, in a sequence', json: whole({ model: model({}), added_tokens: [added(n, '[gMASK]', { special: true }), added(n + 1, '<sop>', { special: true })], post_processor: { type: 'Sequence', processors: [{ type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true }, template([{ SpecialToken: { id: '[gMASK]', type_id: 0 } }, { SpecialToken: { id: '<sop>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }], { '[gMASK]': { id: '[gMASK]', ids: [n], tokens: ['[gMASK]'] }, '<sop>': { id: '<sop>', ids: [n + 1], tokens: ['<sop>'] } })] } }), texts: ['', 'abc'] },
  { name: 'D3 prefix after special tokens', json: whole({ model: model({ unk_token: '<unk>' }), normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }] }, added_tokens: [added(n, '<s>', { special: true })], decoder: llama_decoder }), texts: ['hello', ' hello', '<s>hello', '<s> hello', 'a<s>a', '<s><s>', ''] },
  { name: 'D3 prefix at the start alone', json: whole({ model: model({ unk_token: '<unk>' }), pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false }, added_tokens: [added(n, '<s>', { special: true })], decoder: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false } }), texts: ['hello', ' hello', '<s>hello', '<s> hello', 'a<s>a', ''] },
];
