// Makes the tokenizers and ids of this folder with Hugging Face's own tokenizers library (npm's @anush008/tokenizers,
// which binds it):
//
//   npm install --prefix /tmp/reference @anush008/tokenizers@0.6.0
//   NODE_PATH=/tmp/reference/node_modules node tests/golden/tokenizer/make_golden.mjs
//
// The text is this project's own. The merges are learned from it here, cut as each tokenizer cuts; what is of other
// models is their way to write tokenizer.json, and the regular expressions in it.
import fs from 'fs';
import path from 'path';
import {createRequire} from 'module';
import {fileURLToPath} from 'url';

const {Tokenizer} = createRequire(import.meta.url)('@anush008/tokenizers');
const folder = path.dirname(fileURLToPath(import.meta.url));

const llama3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" +
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const qwen2 = llama3.replace('\\p{N}{1,3}', '\\p{N}');

const lines = [
  "Training one model across datacenters means that links are slow and devices are many.",
  "The planner searches over everything that the job leaves open, and says why it chose what it chose.",
  "I don't think they've seen what we'll do; he's said that she'd go, and I'm sure you're right.",
  "DON'T SHOUT: IT'S LOUD, THEY'RE HERE, WE'VE GONE.",
  "for (int i = 0; i < 1024; ++i) {\n    sum += values[i] * 3.14159;  // a comment\n}\n",
  "\tif x == 0:\n\t\treturn None\n\n\n    else:\r\n        pass\r\n",
  "In 2024, 1234567 tokens cost $0.15; 99.9% of 16,777,216 are fine.",
  "Größe, naïve café, señor, façade, Ångström, Łódź, İstanbul, straße, œuvre.",
  "Обучение одной модели в нескольких дата-центрах требует терпения.",
  "Η εκπαίδευση ενός μοντέλου θέλει χρόνο.",
  "在多个数据中心训练一个模型，需要很快的网络。深度学习模型的训练。",
  "複数のデータセンターでひとつのモデルを学習させる。カタカナとひらがな。",
  "여러 데이터센터에서 하나의 모델을 학습시킨다.",
  "تدريب نموذج واحد عبر عدة مراكز بيانات يحتاج إلى شبكة سريعة.",
  "אימון מודל אחד במרכזי נתונים רבים.",
  "कई डेटा केंद्रों में एक मॉडल को प्रशिक्षित करना।",
  "การฝึกโมเดลเดียวในหลายศูนย์ข้อมูล",
  "Emoji: 🙂🙃 👩‍👩‍👧‍👦 🇳🇴 👍🏽 ❤️ ✨✨✨",
];

// Each is encoded as a document of its own.
const texts = [
  ...lines,
  lines.join("\n"),
  "", " ", "  ", "\n", "\r\n", "\n\n\n", " \n ", "\t\t x", "a", "a ", " a", "  a  b   c    d",
  "x\u00a0y\u2003z\u3000w\u180ev\u200bu\ufeffend",
  "line one \n  line two\n\n \n   line three   \n",
  "trailing spaces   ", "   leading spaces", "spaces before newline   \nnext",
  "don'ſ DON'ſ 'S 's 'sx x's'st it''s 'LL'll 'Re", "we'll've been'd", "'", "''", "' s",
  "1 12 123 1234 12345 1234567890 ١٢٣٤ ½ ² Ⅷ 10⁶ 3.14 1,000,000 0x1F",
  "e\u0301 vs \u00e9, A\u030a vs \u00c5, \u1100\u1161\u11a8 vs \uac01, q\u0323\u0307 q\u0307\u0323, \u0958 \u2126 \u212b \ufb01",
  "\u0301starts with a mark", "a\n\u0301mark after a line feed", "\u0915\u093c \u0958 \u09c7\u09be \u09cb",
  "\u09fe\u094d \u{11935}\u{11930} a\u1df6\u0323 e\u1ac1\u0301 marks newer than Unicode 9",
  "\uac00\u11a7 \u1100\u1161\u11a7 \u1100\u1161\u11a8 \uac00\u11a8 \u1100\u11a8 \u1113\u1161",
  "<|begin_of_text|>special<|end_of_text|> tokens <|eot_id|><|endoftext|>in text<|im_start|>user\nhi<|im_end|>",
  "<|begin_of_text|", "<|<|endoftext|>|>", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "a  <mask>  b\n<mask>\n",
  "<tool> x<tool>y <tool><tool_call>z</tool_call>", "caf\u00e9tag cafe\u0301tag",
  "!!!??? ... --- ***\n\n===\r\n### Title ###\n- item\n- item",
  "https://example.org/path?query=1&other=2#part user@example.org",
  "a".repeat(40), "a".repeat(1000), "ab".repeat(700), " ".repeat(300) + "x", "\n".repeat(200), "=".repeat(200), "中".repeat(300),
  "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen ".repeat(3),
  "planner tokens training datacenters model", " planner tokens training datacenters model", "plannertokenstraining",
  "\u0000\u0001\u001f\u007f\u0080\u009f\u00ad", "\u{10ffff}\ue000\uffff\u{1f9d1}\u{20000}\u{e0001}", "mixedスクリプトtextと漢字and한글",
  "{\"key\": [1, 2.5e-3, null, true], \"other\": \"v\\n\"}", "SELECT * FROM t WHERE a >= 10 AND b <> 'x';",
  "\u2028\u2029\u0085\u000b\u000c", "x\u0085y\u2028z", "İi Iı ſs K k Å",
];

const letters = {};
for (let byte = 0, other = 256; byte < 256; ++byte) {
  const is_itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  letters[byte] = String.fromCodePoint(is_itself ? byte : other++);
}

const split = (regex) => ({
  type: 'Sequence',
  pretokenizers: [
    {type: 'Split', pattern: {Regex: regex}, behavior: 'Isolated', invert: false},
    {type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false},
  ],
});
const special = (content, more = {}) =>
    ({content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...more});
const token_template = (name, id) => ({
  type: 'Sequence',
  processors: [
    {type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true},
    {type: 'TemplateProcessing',
     single: [{SpecialToken: {id: name, type_id: 0}}, {Sequence: {id: 'A', type_id: 0}}],
     pair: [{SpecialToken: {id: name, type_id: 0}}, {Sequence: {id: 'A', type_id: 0}},
            {SpecialToken: {id: name, type_id: 1}}, {Sequence: {id: 'B', type_id: 1}}],
     special_tokens: {[name]: {id: name, ids: [id], tokens: [name]}}},
  ],
});

const shapes = {
  // ids of whole words that no merge makes; merges as pairs; a begin of text
  llama3: {
    merges: 500, pairs: true, whole: ['Ġplanner', 'tokens', 'ä¸Ń'], normalizer: null, pre_tokenizer: split(llama3),
    added: [special('<|begin_of_text|>'), special('<|end_of_text|>'), special('<|eot_id|>')],
    begin: '<|begin_of_text|>', model: {ignore_merges: true, unk_token: null},
  },
  // NFC, digits one by one, merges as words, tokens that are no special ones
  qwen2: {
    merges: 400, pairs: false, whole: [], normalizer: {type: 'NFC'}, pre_tokenizer: split(qwen2),
    added: [special('<|endoftext|>'), special('<|im_start|>'), special('<|im_end|>'),
            special('<tool_call>', {special: false}), special('</tool_call>', {special: false}),
            special('<tool>', {special: false, normalized: true}),
            special('cafe\u0301tag', {special: false, normalized: true}), special('<mask>', {lstrip: true, rstrip: true})],
    begin: null, model: {ignore_merges: false, continuing_subword_prefix: '', end_of_word_suffix: '', unk_token: null},
  },
  // GPT-2's own words, and special tokens in the vocabulary of the model
  gpt2: {
    merges: 300, pairs: false, whole: ['<|endoftext|>'], normalizer: null,
    pre_tokenizer: {type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true},
    added: [special('<|endoftext|>', {normalized: true})], begin: null, model: {unk_token: ''},
  },
  // a space before each document, digits, what is between matches dropped
  spaced: {
    merges: 200, pairs: true, whole: [], normalizer: {type: 'Sequence', normalizers: [{type: 'NFC'}]},
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        {type: 'Split', pattern: {Regex: '\\p{Han}+|[^\\p{Han}=]++|=+?'}, behavior: 'Removed', invert: true},
        {type: 'Split', pattern: {String: '::'}, behavior: 'Isolated', invert: false},
        {type: 'Digits', individual_digits: true},
        {type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true},
      ],
    },
    added: [special('<|endoftext|>')], begin: null, model: {unk_token: null},
  },
};

// Learns `count` merges from the words: the most frequent pair, of equal ones the first in order.
function learn(words, count) {
  const pieces = [...words].map(([word, times]) => ({symbols: [...word], times}));
  const merges = [];
  while (merges.length < count) {
    const pairs = new Map();
    for (const {symbols, times} of pieces) {
      for (let i = 0; i + 1 < symbols.length; ++i) {
        const key = symbols[i] + ' ' + symbols[i + 1];
        pairs.set(key, (pairs.get(key) ?? 0) + times);
      }
    }
    const best = [...pairs].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0];
    if (!best || best[1] < 2) break;
    const [left, right] = best[0].split(' ');
    merges.push([left, right]);
    for (const piece of pieces) {
      for (let i = 0; i + 1 < piece.symbols.length; ++i) {
        if (piece.symbols[i] === left && piece.symbols[i + 1] === right) piece.symbols.splice(i, 2, left + right);
      }
    }
  }
  return merges;
}

function build(shape, merges) {
  const vocab = {};
  for (let byte = 0; byte < 256; ++byte) vocab[letters[byte]] = Object.keys(vocab).length;
  for (const token of [...merges.map(([left, right]) => left + right), ...shape.whole]) {
    if (!(token in vocab)) vocab[token] = Object.keys(vocab).length;
  }
  let next = Object.keys(vocab).length;
  const added = shape.added.map((token) => ({id: vocab[token.content] ?? next++, ...token}));
  const id = (name) => added.find((token) => token.content === name).id;
  return {
    version: '1.0', truncation: null, padding: null, added_tokens: added, normalizer: shape.normalizer,
    pre_tokenizer: shape.pre_tokenizer,
    post_processor: shape.begin ? token_template(shape.begin, id(shape.begin)) :
                                  {type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false},
    decoder: {type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true},
    model: {type: 'BPE', dropout: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false,
            byte_fallback: false, ...shape.model, vocab,
            merges: shape.pairs ? merges : merges.map((pair) => pair.join(' '))},
  };
}

fs.writeFileSync(path.join(folder, 'texts.json'), JSON.stringify(texts, null, 1) + '\n');
for (const [name, shape] of Object.entries(shapes)) {
  const cutter = Tokenizer.fromString(JSON.stringify(build(shape, [])));
  const words = new Map();
  for (const text of [...lines, ...lines.map((line) => line.toLowerCase())]) {
    for (const [word] of cutter.getPreTokenizer().preTokenizeString(text.normalize('NFC'))) {
      words.set(word, (words.get(word) ?? 0) + 1);
    }
  }
  const json = JSON.stringify(build(shape, learn(words, shape.merges)));
  const tokenizer = Tokenizer.fromString(json);
  const ids = [];
  for (const text of texts) ids.push((await tokenizer.encode(text, null, {addSpecialTokens: false})).getIds());
  fs.mkdirSync(path.join(folder, name), {recursive: true});
  fs.writeFileSync(path.join(folder, name, 'tokenizer.json'), json + '\n');
  fs.writeFileSync(path.join(folder, name, 'ids.json'), '[' + ids.map((list) => JSON.stringify(list)).join(',\n ') + ']\n');
}
