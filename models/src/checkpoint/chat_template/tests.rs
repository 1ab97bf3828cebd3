use super::*;

fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.into(),
        content: content.into(),
        ..Message::default()
    }
}

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

/// Compares with cases rendered by transformers: `models/fixtures/make_chat_fixtures.py`.
#[test]
fn renderings_equal_those_of_transformers() {
    #[derive(serde::Deserialize)]
    struct Case {
        name: String,
        template: String,
        messages: Vec<(String, String)>,
        /// Messages with tool calls, instead of the others.
        #[serde(default)]
        chat: Vec<serde_json::Map<String, serde_json::Value>>,
        #[serde(default)]
        tools: Vec<serde_json::Value>,
        rendered: String,
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/chat-templates.json");
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(cases.len() >= 8);
    for case in cases {
        let special = SpecialTokens {
            bos_token: Some("<s>".into()),
            eos_token: Some("</s>".into()),
            ..SpecialTokens::default()
        };
        let template = ChatTemplate::new(Some(case.template), special);
        let texts = case.messages.iter().map(|(role, text)| message(role, text));
        let chat = case.chat.into_iter().map(|keys| {
            let text = |key: &str| keys.get(key).and_then(|text| text.as_str()).unwrap_or_default();
            let (role, content) = (text("role").to_owned(), text("content").into());
            let others = keys
                .into_iter()
                .filter(|(key, _)| !["role", "content"].contains(&key.as_str()));
            Message {
                role,
                content,
                further: others.collect(),
            }
        });
        let messages: Vec<Message> = texts.chain(chat).collect();
        assert_eq!(
            template
                .render(&messages, &case.tools, &serde_json::Map::new())
                .unwrap(),
            case.rendered,
            "{}",
            case.name
        );
    }
}

#[test]
fn the_template_is_found_where_transformers_writes_it() {
    let text = r#"{"chat_template": "old {{ messages[0].content }}", "bos_token": {"content": "<s>", "lstrip": false}}"#;
    let list = r#"{"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "list"}]}"#;
    let (hello, none) = ([message("user", "hi")], serde_json::Map::new());
    let render = |files: &[(&str, &str)]| {
        ChatTemplate::open(directory(files).path())
            .unwrap()
            .render(&hello, &[], &none)
    };
    assert_eq!(render(&[("tokenizer_config.json", text)]).unwrap(), "old hi");
    assert_eq!(render(&[("tokenizer_config.json", list)]).unwrap(), "list");
    let newer = [
        ("tokenizer_config.json", text),
        ("chat_template.jinja", "new {{ bos_token }}"),
    ];
    assert_eq!(render(&newer).unwrap(), "new <s>");
    let processor = [
        ("tokenizer_config.json", text),
        (
            "processor_config.json",
            r#"{"chat_template": "processor", "processor_class": "X"}"#,
        ),
    ];
    assert_eq!(render(&processor).unwrap(), "processor");
    assert!(matches!(render(&[]), Err(TemplateError::Missing)));
}

/// Excerpt of the templates of `DeepSeek`.
#[test]
fn arguments_are_texts_for_templates_that_join_them() {
    let source = "{% for m in messages %}{% if m['content'] is none %}{% for call in m['tool_calls'] %}\
        <call>{{ call['function']['name'] + '(' + call['function']['arguments'] + ')' }}{% endfor %}\
        {% else %}[{{ m['content'] }}]{% endif %}{% endfor %}";
    let template = ChatTemplate::new(Some(source.into()), SpecialTokens::default());
    let call = |arguments: &str| {
        let calls =
            serde_json::json!([{"type": "function", "function": {"name": "f", "arguments": arguments}}]);
        Message {
            role: "assistant".into(),
            content: Content::None,
            further: [(CALLS.to_owned(), calls)].into_iter().collect(),
        }
    };
    let none = serde_json::Map::new();
    let messages = [message("user", "go"), call(r#"{"a": 1,"b":2}"#)];
    let rendered = template.render(&messages, &[], &none).unwrap();
    assert_eq!(rendered, r#"[go]<call>f({"a": 1,"b":2})"#);
    let other =
        "{% for m in messages %}{{ m.content }}{% if m.tool_calls is not none %}.{% endif %}{% endfor %}";
    let other = ChatTemplate::new(Some(other.into()), SpecialTokens::default());
    assert_eq!(
        other.render(&messages, &[], &none).unwrap(),
        "go..",
        "a template that does not ask gets a text"
    );
}

#[test]
fn parts_of_a_message_stay_parts_or_become_lines() {
    let parts = Message {
        role: "user".into(),
        content: Content::Parts(vec!["Summarise:".into(), "Cats sleep.".into()]),
        ..Message::default()
    };
    let render = |source: &str| {
        let template = ChatTemplate::new(Some(source.into()), SpecialTokens::default());
        let rendered = template.render(std::slice::from_ref(&parts), &[], &serde_json::Map::new());
        rendered.unwrap()
    };
    assert_eq!(render("{{ messages[0].content }}"), "Summarise:\nCats sleep.");
    let by_parts = "{% for part in messages[0].content %}<{{ part.text }}>{% endfor %}";
    assert_eq!(render(by_parts), "<Summarise:><Cats sleep.>");
}

#[test]
fn tools_need_a_template_that_writes_them() {
    let tools = [serde_json::json!({"type": "function", "function": {"name": "weather"}})];
    let list = r#"{"chat_template": [{"name": "tool_use", "template": "{{ tools[0].function.name }}"}, {"name": "default", "template": "plain"}]}"#;
    let template = ChatTemplate::open(directory(&[("tokenizer_config.json", list)]).path()).unwrap();
    let (hello, none) = ([message("user", "hi")], serde_json::Map::new());
    assert_eq!(template.render(&hello, &tools, &none).unwrap(), "weather");
    assert_eq!(template.render(&hello, &[], &none).unwrap(), "plain");
    let plain = ChatTemplate::new(Some("{{ messages[0].content }}".into()), SpecialTokens::default());
    assert!(matches!(
        plain.render(&hello, &tools, &none),
        Err(TemplateError::NoTools)
    ));
}

#[test]
fn variables_reach_the_template_but_replace_none_of_its_own() {
    let source = "{% if enable_thinking is defined and enable_thinking is false %}plain{% endif %} {{ messages | length }}";
    let template = ChatTemplate::new(Some(source.into()), SpecialTokens::default());
    let variables = serde_json::json!({"enable_thinking": false, "messages": []});
    let variables = variables.as_object().unwrap();
    assert_eq!(
        template.render(&[message("user", "x")], &[], variables).unwrap(),
        "plain 1"
    );
}

#[test]
fn a_date_is_there_for_templates_that_need_one() {
    let render = |source: &str| {
        ChatTemplate::new(Some(source.into()), SpecialTokens::default()).render(
            &[message("user", "x")],
            &[],
            &serde_json::Map::new(),
        )
    };
    let year = render("{{ strftime_now('%Y') }}").unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2025, "{year}");
    let asks = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}none{% endif %}";
    assert_eq!(
        render(asks).unwrap(),
        year,
        "as in transformers, which defines it"
    );
    let unknown = render("{{ strftime_now('%Q') }}").unwrap_err().to_string();
    assert!(unknown.contains("%Q"), "{unknown}");
}

#[test]
fn a_template_that_fails_gives_its_reason() {
    let failed = |source: &str| {
        let template = ChatTemplate::new(Some(source.into()), SpecialTokens::default());
        template
            .render(&[message("tool", "x")], &[], &serde_json::Map::new())
            .unwrap_err()
            .to_string()
    };
    let raised = failed("{{ raise_exception('roles must alternate') }}");
    assert!(raised.contains("roles must alternate"), "{raised}");
    assert!(failed("{% if %}").contains("syntax"), "{}", failed("{% if %}"));
    let endless = failed("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}");
    assert!(endless.contains("fuel"), "{endless}");
}

#[test]
fn additional_templates_are_read() {
    let dir = directory(&[
        ("chat_template.jinja", "{{ messages[0].content }}"),
        (
            "tokenizer_config.json",
            r#"{"chat_template": "of the configuration"}"#,
        ),
    ]);
    let folder = dir.path().join("additional_chat_templates");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("tool_use.jinja"), "{{ tools[0].function.name }}").unwrap();
    std::fs::write(folder.join("rag.jinja"), "{{ raise_exception('unused') }}").unwrap();
    let tools = [serde_json::json!({"type": "function", "function": {"name": "clock"}})];
    let rendered = |tools: &[serde_json::Value]| {
        let template = ChatTemplate::open(dir.path()).unwrap();
        template
            .render(&[message("user", "hi")], tools, &serde_json::Map::new())
            .unwrap()
    };
    assert_eq!((rendered(&[]), rendered(&tools)), ("hi".into(), "clock".into()));
    std::fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    assert_eq!(
        (rendered(&[]), rendered(&tools)),
        ("of the configuration".into(), "clock".into())
    );
}

#[test]
fn unknown_options_of_tojson_are_refused() {
    for options in [
        "depth=1",
        "separators=','",
        "separators=[',']",
        "false, none, none, false, 1",
    ] {
        let source = format!("{{{{ messages[0].content | tojson({options}) }}}}");
        let template = ChatTemplate::new(Some(source), SpecialTokens::default());
        let rendered = template.render(&[message("user", "hi")], &[], &serde_json::Map::new());
        assert!(
            matches!(rendered, Err(TemplateError::Failed(_))),
            "{options}: {rendered:?}"
        );
    }
}
