# Prints comment blocks that open without a subject, as file:line: opening; exits with 1 when there are any.
#
# A block is a run of `//` lines; comments behind code qualify that code ("// of one rank, in bytes") and are left out.
# Its first sentence opens with its noun ("Bytes that ...", "Time until ..."), with a verb in the third person
# ("Returns ...") or with "True when ...". Refused are openings that make the reader guess what is spoken of:
# - words of `never`: "What", "Of", "How", "Whether", ...;
# - words of `introduces`, unless a comma and a clause of their own follow ("When the queue is full, Send waits.") or
#   the sentence is a label of at most four words ("In bytes.", "Per stage: F, I and W.", "On the core's thread.").
# The comma is a guess at the grammar; it lets a few through and should refuse none that is well written.

BEGIN {
  Set(never, "About And But By Has How Like Neither Nobody None Nothing Of Such That Those Told What Whatever Whether " \
             "Which Who Whoever Whose Why")
  Set(introduces, "After As At Before Behind Beside Between Beyond During For From If In On Once Over Per Since Through " \
                  "To Under Until Up When Where While With Within Without")
  Set(labels, "After Before For From In On Per With Without")
  # After these a comma goes on with the introduction.
  Set(continues, "also and as at because before but by else first for from if in less nor not of on or over so than that " \
                 "then to until when where which while who whose with within without")
}

function Set(set, words,   i, n, each) {
  n = split(words, each, " ")
  for (i = 1; i <= n; ++i) {
    set[each[i]] = 1
  }
}

# True when a comma in `sentence` is followed by the start of a clause.
function HasClause(sentence,   parts, n, i, word) {
  n = split(sentence, parts, ", ")
  for (i = 2; i <= n; ++i) {
    word = parts[i]
    sub(/[^a-z].*/, "", word)
    if (!(word in continues)) {
      return 1
    }
  }
  return 0
}

function Judge(   sentence, words, n, first) {
  sentence = text
  sub(/[.:;]( .*)?$/, "", sentence)
  n = split(sentence, words, " ")
  first = words[1]
  sub(/[^A-Za-z-].*/, "", first)
  if (sentence ~ /^(None of|At most|At least) /) {
    return
  }
  if (first in never || (first in introduces && !HasClause(sentence) && !(first in labels && n <= 4))) {
    Refuse()
  }
}

function Refuse() {
  printf "%s:%d: %s\n", file, line, substr(text, 1, 90)
  ++refused
}

FNR == 1 {
  End()
  behind = 0
}

function End() {
  if (text != "") {
    Judge()
  }
  text = ""
}

/^[ \t]*\/\// {
  if (index($0, "//") == behind) {
    next  # the rest of a comment behind code
  }
  sub(/^[ \t]*\/\/+ ?/, "")
  if (text == "") {
    file = FILENAME
    line = FNR
    text = $0
  } else {
    text = text " " $0
  }
  next
}

{
  End()
  behind = match($0, /[^ ] +\/\/ [^\/]*$/) ? index($0, "// ") : 0
}

END {
  End()
  exit refused > 0
}
