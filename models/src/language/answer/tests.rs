use proptest::prelude::*;

use super::*;
use crate::language::tools::Syntax;
use crate::runtime::tensor::Tensor;

const WEATHER: &str =
    r#"[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]"#;

fn tools() -> Tools {
    let inputs = vec![Tensor::from_texts("tools", &[WEATHER]).unwrap()];
    Tools::read(&inputs).unwrap().unwrap()
}

/// Returns the parts and calls of an answer that is received in pieces of at most `size` bytes.
fn scanned(
    template: &str,
    is_open: bool,
    answer: &str,
    size: usize,
    hit_max_tokens: bool,
) -> (Parts, Vec<String>) {
    let syntax = ReasoningSyntax::of_template(template).map(|syntax| (syntax, is_open));
    let tools = tools();
    let calls = CallScanner::new(Syntax::of_template("<tool_call>"), &tools, false);
    let mut scanner = AnswerScanner::new(syntax, Some(calls), Some(&tools));
    let mut all = Parts::default();
    let mut rest = answer;
    while !rest.is_empty() {
        let mut at = size.min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        let (piece, after) = rest.split_at(at);
        let parts = scanner.push(piece);
        all.text += &parts.text;
        all.reasoning += &parts.reasoning;
        rest = after;
    }
    let (parts, calls) = scanner.finish(hit_max_tokens);
    all.text += &parts.text;
    all.reasoning += &parts.reasoning;
    (all, calls.iter().map(ToolCall::json).collect())
}

const CALL: &str = r#"{"name":"weather","arguments":{"city":"Paris"}}"#;
const QWEN: &str = "{{ '<think>' }} <tool_call>";
const HARMONY: &str = "<|start|>assistant<|channel|>final<|message|>";

/// Template, whether the prompt opened the reasoning, answer, expected reasoning, expected text, whether a call is
/// expected.
#[rustfmt::skip]
const ANSWERS: &[(&str, bool, &str, &str, &str, bool)] = &[
    (QWEN, false, "<think>\nlet me see\n</think>\n\nParis is\n", "let me see", "Paris is\n", false),
    (QWEN, true, "let me see\n</think>\n\nParis", "let me see", "Paris", false),
    (QWEN, false, "<think>\n\n</think>\n\nParis", "", "Paris", false),
    (QWEN, false, "Paris <think>", "", "Paris <think>", false),
    (QWEN, false, " \nParis", "", " \nParis", false),
    (QWEN, false, "<think>cut of", "cut of", "", false),
    (QWEN, false, "<think>a < b </thin</think>é", "a < b </thin", "é", false),
    (QWEN, true, "x</think>Here:\n<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"Paris\"}}</tool_call>", "x", "Here:", true),
    ("[THINK]", false, "[THINK]x[/THINK]y", "x", "y", false),
    ("", false, "<think>x</think>y", "", "<think>x</think>y", false),
    (HARMONY, false, "<|channel|>analysis<|message|>let me see<|end|><|start|>assistant<|channel|>final<|message|>Paris", "let me see", "Paris", false),
    (HARMONY, false, "<|channel|>final<|message|>Paris<|return|>", "", "Paris", false),
    (HARMONY, false, "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":\"Paris\"}", "x", "", true),
    (HARMONY, false, "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Paris\"}<|call|>", "", "", true),
    (HARMONY, false, "<|channel|>commentary<|message|>I ask. <|end|><|start|>assistant<|channel|>commentary to=functions.weather<|message|>{\"city\":\"Paris\"}", "", "I ask. ", true),
    // Calls of unknown functions and arguments that are not JSON are text.
    (HARMONY, false, "<|channel|>commentary to=functions.other<|message|>{\"city\":1}", "", "{\"city\":1}", false),
    (HARMONY, false, "<|channel|>commentary to=functions.weather<|message|>{\"city\"", "", "{\"city\"", false),
    (HARMONY, false, "to be or not", "", "to be or not", false),
    (HARMONY, false, "<html>", "", "<html>", false),
    (HARMONY, false, " t", "", " t", false),
    (HARMONY, false, "no messages < at all", "", "no messages < at all", false),
    (HARMONY, false, "<|channel|>analysis<|message|>cut of", "cut of", "", false),
];

#[test]
fn parts_of_an_answer_are_separated_however_it_comes() {
    for (template, is_open, answer, reasoning, text, has_call) in ANSWERS {
        for size in [1, 2, 3, 7, 1_000] {
            let (parts, calls) = scanned(template, *is_open, answer, size, false);
            assert_eq!(
                (parts.reasoning.as_str(), parts.text.as_str()),
                (*reasoning, *text),
                "{answer} by {size}"
            );
            assert_eq!(calls.len(), usize::from(*has_call), "{answer} by {size}");
            if let [call] = calls.as_slice() {
                let read = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
                assert_eq!(read(call), read(CALL));
            }
        }
    }
}

#[test]
fn a_cut_call_is_text() {
    let answer = "<|channel|>commentary to=functions.weather<|message|>{\"city\":\"Paris\"}";
    let (parts, calls) = scanned(HARMONY, false, answer, 5, true);
    assert_eq!((parts.text.as_str(), calls.len()), ("{\"city\":\"Paris\"}", 0));
}

#[test]
fn prompts_that_open_the_reasoning_are_seen() {
    let syntax = ReasoningSyntax::of_template(QWEN).unwrap();
    assert!(syntax.is_open_after("<|im_start|>assistant\n<think>\n"));
    assert!(!syntax.is_open_after("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert_eq!(ReasoningSyntax::of_template("{{ message }}"), None);
    // Some templates only strip the reasoning of earlier answers.
    assert!(ReasoningSyntax::of_template("content.split('</think>')").is_some());
}

proptest! {
    /// Checks that no text is lost or invented, whatever a model generates.
    #[test]
    fn answers_without_marks_are_text(answer in "[a-z <|>\n/]{0,40}", size in 1_usize..9) {
        prop_assume!(!answer.contains("<think>") && !answer.contains("<|"));
        let (parts, calls) = scanned("<think>", false, &answer, size, false);
        prop_assert_eq!((parts.reasoning.as_str(), calls.len()), ("", 0));
        prop_assert_eq!(parts.text.trim_end(), answer.trim_end());
    }

    #[test]
    fn channels_never_panic(pieces in prop::collection::vec(prop::sample::select(vec![
        "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "analysis", " to=functions.weather", "é", "{}", "<|", "final",
    ]), 0..12), size in 1_usize..9) {
        scanned(HARMONY, false, &pieces.concat(), size, false);
    }
}
