use proptest::prelude::*;

use super::*;
use crate::generation::Grammar;
use crate::runtime::model::{Inputs, ModelError};
use crate::runtime::tensor::Tensor;

const WEATHER: &str = r#"{"type": "function", "function": {"name": "weather", "description": "x",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}"#;

fn inputs(tools: &str, choice: &str) -> Inputs {
    let mut inputs = vec![Tensor::from_texts(TOOLS, &[tools]).unwrap()];
    inputs.extend((!choice.is_empty()).then(|| Tensor::from_texts(TOOL_CHOICE, &[choice]).unwrap()));
    inputs
}

fn tools(choice: &str) -> Tools {
    Tools::read(&inputs(&format!("[{WEATHER}]"), choice))
        .unwrap()
        .unwrap()
}

/// Returns text and calls of an answer that is received in pieces.
fn scanned(syntax: Syntax, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    let mut scanner = CallScanner::new(syntax, &tools("auto"), false);
    let mut text: String = pieces.iter().map(|piece| scanner.push(piece)).collect();
    let (rest, calls) = scanner.finish(false);
    text += &rest;
    let calls = calls
        .into_iter()
        .map(|call| (call.name, call.arguments.to_string()));
    (text, calls.collect())
}

fn syntax(mark: &str) -> Syntax {
    Syntax::of_template(mark)
}

/// Marker of Hermes.
const HERMES: &str = "<tool_call>";

/// Arguments of a call, and of another one.
const ONE: &str = r#"{"city":"Paris"}"#;
const TWO: &str = r#"{"city":"Paris","days":2}"#;

/// Marker of a template, an answer that is a call of `weather`, and the arguments of that call.
#[rustfmt::skip]
const WRITTEN: &[(&str, &str, &str)] = &[
    (
        HERMES,
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
        ONE,
    ),
    // The end marker may be missing, and arguments may be a string of JSON.
    (
        HERMES,
        "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\"}",
        ONE,
    ),
    (
        HERMES,
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        TWO,
    ),
    (
        HERMES,
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        TWO,
    ),
    (
        "<function=",
        "<function=weather>{\"city\": \"Paris\"}</function>",
        ONE,
    ),
    (
        "<|tool_call|>",
        "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}]",
        TWO,
    ),
    (
        "<|START_ACTION|>",
        "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}]<|END_ACTION|>",
        ONE,
    ),
    (
        "[TOOL_CALLS]",
        "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]",
        ONE,
    ),
    (
        "[TOOL_CALLS]",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"Paris\"}",
        ONE,
    ),
    (
        "[TOOL_CALLS]",
        "[TOOL_CALLS]weather{\"city\": \"Paris\"}",
        ONE,
    ),
    (
        "<|tool_call_start|>",
        "<|tool_call_start|>[weather(city=\"Paris\", days=2)]<|tool_call_end|>",
        TWO,
    ),
    (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE,
    ),
    (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE,
    ),
    (
        "",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
        ONE,
    ),
    (
        "",
        "<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
        ONE,
    ),
    ("", "[weather(city='Paris', days=2)]", TWO),
];

#[test]
fn every_way_of_writing_calls_is_read() {
    for (mark, answer, arguments) in WRITTEN {
        let (syntax, expected) = (
            syntax(mark),
            vec![("weather".to_owned(), (*arguments).to_owned())],
        );
        assert_eq!(
            scanned(syntax, &[answer]),
            (String::new(), expected.clone()),
            "{answer}"
        );
        let letters: Vec<String> = answer.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(
            scanned(syntax, &letters),
            (String::new(), expected.clone()),
            "{answer} letter by letter"
        );
    }
    let (text, calls) = scanned(
        syntax(HERMES),
        &[
            "I look",
            " it up.\n",
            "\n<tool",
            "_call>{\"name\": \"weather\"}</tool_call><tool_call>{\"name\": \"x\"}</tool_call>",
        ],
    );
    assert_eq!((text.as_str(), calls.len()), ("I look it up.", 2));
}

#[test]
fn what_is_no_call_is_text() {
    for (syntax, answer) in [
        (
            syntax("<tool_call>"),
            "a < b, <tool, and <tool_call>{\"name\": \"weather\"",
        ),
        (syntax("<tool_call>"), "plain \n"),
        (syntax("[TOOL_CALLS]"), "[TOOL_CALLS]weather of Paris"),
        (Syntax::Bare, "{\"city\": \"Paris\"}"),
        (Syntax::Bare, "{\"name\": \"unknown\", \"parameters\": {}}"),
        (Syntax::Bare, "[1] is a footnote"),
        (Syntax::Bare, "It is {\"name\": \"weather\"}"),
    ] {
        assert_eq!(
            scanned(syntax, &[answer]),
            (answer.to_owned(), Vec::new()),
            "{answer}"
        );
    }
    let mut scanner = CallScanner::new(Syntax::Bare, &tools("auto"), false);
    assert_eq!(
        scanner.push("The "),
        "The ",
        "a text that is no call is shown at once"
    );
}

/// Without the end marker, a truncated value cannot be distinguished from a complete one.
#[test]
fn a_call_that_the_maximum_of_tokens_cuts_off_is_text() {
    for (mark, answer) in [
        (HERMES, "<tool_call>\n<function=weather>\n<parameter=city>\nNew"),
        (
            HERMES,
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<para",
        ),
        (
            HERMES,
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>New",
        ),
        (HERMES, "<tool_call>weat"),
        ("<function=", "<function=weather><parameter=city>New"),
    ] {
        let mut scanner = CallScanner::new(syntax(mark), &tools("auto"), false);
        let shown = scanner.push(answer);
        let (rest, calls) = scanner.finish(true);
        assert_eq!(
            (shown + &rest, calls),
            (answer.to_owned(), Vec::new()),
            "{answer}"
        );
    }
    for (mark, answer, arguments) in WRITTEN {
        let mut scanner = CallScanner::new(syntax(mark), &tools("auto"), false);
        let _ = scanner.push(answer);
        let (_, calls) = scanner.finish(true);
        let is_closed = answer.ends_with('>') || *mark != HERMES && *mark != "<|tool_call|>";
        assert_eq!(
            calls.first().map(|call| call.arguments.to_string()),
            is_closed.then(|| (*arguments).to_owned()),
            "{answer}"
        );
    }
}

#[test]
fn a_value_that_may_be_a_string_is_another_type_only_if_the_parameter_has_it() {
    const FIND: &str = r#"[{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {
        "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "id": {"type": ["string", "integer"]}, "other": {}}}}}]"#;
    let tools = Tools::read(&inputs(FIND, "auto")).unwrap().unwrap();
    let read = |zip: &str, id: &str| {
        let mut scanner = CallScanner::new(syntax(HERMES), &tools, false);
        let _ = scanner.push(&format!(
            "<tool_call>\n<function=find>\n<parameter=zip>\n{zip}\n</parameter>\n<parameter=id>\n{id}\n</parameter>\n\
             <parameter=other>\n7\n</parameter>\n</function>\n</tool_call>"
        ));
        let (_, calls) = scanner.finish(false);
        calls[0].arguments.to_string()
    };
    assert_eq!(read("01067", "7"), r#"{"zip":"01067","id":7,"other":7}"#);
    assert_eq!(read("10115", "7.5"), r#"{"zip":"10115","id":"7.5","other":7}"#);
    assert_eq!(read("null", "x"), r#"{"zip":null,"id":"x","other":7}"#);
}

#[test]
fn the_whole_calls_of_a_list_that_is_cut_off_remain() {
    const CALL: &str = r#"{"name": "weather", "arguments": {"city": "Paris"}}"#;
    let finish = |answer: &str| {
        let mut scanner = CallScanner::new(Syntax::Bare, &tools("required"), false);
        let _ = scanner.push(answer);
        scanner.finish(true)
    };
    for (answer, count) in [
        (format!("[{CALL}, {CALL}, {{\"name\": \"wea"), 2),
        (format!("[{CALL}, {CALL}"), 2),
        (format!("[{CALL}]"), 1),
        (format!("[{CALL},"), 1),
    ] {
        let (text, calls) = finish(&answer);
        assert_eq!((text.as_str(), calls.len()), ("", count), "{answer}");
    }
    let cut = r#"[{"name": "weather", "argu"#;
    assert_eq!(finish(cut), (cut.to_owned(), Vec::new()));
}

#[test]
fn an_answer_has_one_call_if_several_are_not_wanted() {
    let list = format!("[{WEATHER}]");
    let grammar = |parallel: u8| {
        let mut inputs = inputs(&list, "required");
        inputs.push(Tensor {
            name: PARALLEL_TOOL_CALLS.to_owned(),
            shape: vec![1],
            datatype: crate::runtime::tensor::Datatype::Bool,
            data: vec![parallel].into(),
        });
        let Some(crate::generation::Grammar::Lark(grammar)) =
            Tools::read(&inputs).unwrap().unwrap().grammar()
        else {
            panic!("a required call has a grammar");
        };
        grammar.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(grammar(0), "start: \"[\" call \"]\"");
    assert!(grammar(1).contains("{0,31}"));
}

#[test]
fn required_calls_are_a_list() {
    let mut scanner = CallScanner::new(syntax("<tool_call>"), &tools("required"), false);
    assert_eq!(
        scanner.push(r#"[{"name": "weather", "arguments": {"city": "<tool_call>"}}]"#),
        ""
    );
    let (text, calls) = scanner.finish(false);
    assert_eq!(
        (text.as_str(), calls[0].json().as_str()),
        ("", r#"{"name":"weather","arguments":{"city":"<tool_call>"}}"#)
    );
    assert!(tools("auto").grammar().is_none());
    for choice in [
        "required",
        r#"{"type": "function", "function": {"name": "weather"}}"#,
        r#"{"type": "function", "name": "weather"}"#,
    ] {
        assert!(
            matches!(tools(choice).grammar(), Some(Grammar::Lark(_))),
            "{choice}"
        );
    }
}

/// A mark within a text of a format began a call.
#[test]
fn only_the_beginning_of_an_answer_of_a_format_can_be_a_call() {
    let scanned = |pieces: &[&str]| {
        let mut scanner = CallScanner::new(syntax("<tool_call>"), &tools("auto"), true);
        let shown: String = pieces.iter().map(|piece| scanner.push(piece)).collect();
        let (rest, calls) = scanner.finish(false);
        (shown, rest, calls.len())
    };
    let call = r#"{"name": "weather", "arguments": {}}</tool_call>"#;
    assert_eq!(
        scanned(&["<tool", "_call>", call]),
        (String::new(), String::new(), 1)
    );
    let format = format!(r#"{{"a": "<tool_call>{}"}}"#, call.replace('"', "'"));
    assert_eq!(scanned(&["{", &format[1..]]), (format, String::new(), 0));
    assert_eq!(scanned(&["<tool"]), (String::new(), "<tool".to_owned(), 0));
}

#[test]
fn malformed_tools_are_named() {
    let one = format!("[{WEATHER}]");
    for (tools, choice, name) in [
        ("7", "", TOOLS),
        ("[{}]", "", TOOLS),
        (
            r#"[{"type": "web_search", "function": {"name": "x"}}]"#,
            "",
            TOOLS,
        ),
        (
            r#"[{"type": "function", "function": {"name": "x", "parameters": 7}}]"#,
            "",
            TOOLS,
        ),
        (&format!("[{WEATHER}, {WEATHER}]"), "", TOOLS),
        (&one, "perhaps", TOOL_CHOICE),
        (
            &one,
            r#"{"type": "function", "function": {"name": "other"}}"#,
            TOOL_CHOICE,
        ),
        ("[]", "required", TOOL_CHOICE),
        (
            &one,
            r#"{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}"#,
            TOOL_CHOICE,
        ),
    ] {
        let error = Tools::read(&inputs(tools, choice)).unwrap_err();
        assert!(
            matches!(&error, ModelError::BadInput { name: named, .. } if named == name),
            "{error}"
        );
    }
    assert_eq!(Tools::read(&inputs(&one, "none")).unwrap(), None);
    assert_eq!(Tools::read(&inputs("[]", "")).unwrap(), None);
}

proptest! {
    /// Checks that parsing never panics, and that without a call no text is lost, whatever a model generates.
    #[test]
    fn no_text_is_lost(pieces in prop::collection::vec(prop::sample::select(vec![
        "<tool_call>", "</tool_call>", "<tool", "{", "}", "\"name\": \"weather\"", "[", "]", "(", ")", "weather", "=", ",", "é", " ", "\n",
        "[TOOL_CALLS]", "<function=", ">", "<parameter=", "<｜tool▁calls▁begin｜>", "<|python_tag|>", "\\", "'", "1",
    ]), 0..24)) {
        for mark in ["", "<tool_call>", "<function=", "[TOOL_CALLS]", "<｜tool▁calls▁begin｜>", "<|tool_call_start|>"] {
            let (text, calls) = scanned(syntax(mark), &pieces);
            if calls.is_empty() {
                prop_assert_eq!(text, pieces.concat());
            }
        }
    }
}
