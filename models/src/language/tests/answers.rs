//! Contents of an answer: parts, markers, probabilities, reasoning.

use super::*;

#[test]
fn penalties_and_the_most_probable_tokens_are_applied_and_reported() {
    let mut model = model(|_| ());
    let mut ask = |more: Vec<Tensor>| {
        let mut inputs = vec![text("one"), number("max_tokens", 12)];
        inputs.extend(more);
        model.run(&[inputs]).remove(0)
    };
    let float = |name: &str, value: f32| Tensor::from_f32(name, &[1], &[value]).unwrap();
    let plain = ask(vec![number("top_logprobs", 3)]).unwrap();
    let top = output(&plain, "top_tokens");
    assert_eq!(top.shape, [12, 3]);
    let logprobs = output(&plain, "top_logprobs").to_f32().unwrap();
    let probabilities = output(&plain, "probabilities").to_f32().unwrap();
    for (index, token) in tokens(&plain).iter().enumerate() {
        assert_eq!(top.to_i64().unwrap()[3 * index], *token, "greedy takes the first");
        assert!((logprobs[3 * index].exp() - probabilities[index]).abs() < 1e-5);
    }
    let said = output(&plain, "token_texts").to_texts().unwrap().concat();
    assert_eq!(said, output(&plain, "text").to_texts().unwrap().concat());
    let top_texts = output(&plain, "top_token_texts");
    assert_eq!(top_texts.shape, [12, 3]);
    let first = top_texts.to_texts().unwrap().into_iter().step_by(3);
    assert_eq!(first.collect::<String>(), said);
    let none = ask(vec![number("top_logprobs", 0)]).unwrap();
    let names: Vec<&str> = none.iter().map(|output| output.name.as_str()).collect();
    assert!(
        names.contains(&"token_texts") && !names.contains(&"top_token_texts"),
        "{names:?}"
    );
    assert!(
        ask(vec![])
            .unwrap()
            .iter()
            .all(|output| output.name != "token_texts")
    );
    let varied = tokens(
        &ask(vec![
            float("frequency_penalty", 2.0),
            float("presence_penalty", 2.0),
        ])
        .unwrap(),
    );
    assert_ne!(varied, tokens(&plain));
    assert!(ask(vec![float("repetition_penalty", -1.0)]).is_err());
    assert!(ask(vec![number("top_logprobs", 99)]).is_err());
    assert!(ask(vec![float("min_p", 0.5)]).is_ok());
}

#[test]
fn tokens_of_the_prompt_have_the_probabilities_that_a_forward_pass_gives_them() {
    let mut model = model(|_| ());
    let ids: Vec<i64> = (1..80).map(|token| token % 7 + 3).collect();
    let ask = |model: &mut LanguageModel<Cpu>, ids: &[i64], count: i64| {
        let prompt = Tensor::from_i64("input_ids", &[ids.len()], ids).unwrap();
        let inputs = vec![prompt, number("max_tokens", 3), number("prompt_logprobs", count)];
        model.run(&[inputs]).remove(0)
    };
    let answer = ask(&mut model, &ids, 2).unwrap();
    assert_eq!(output(&answer, "prompt_tokens").to_i64().unwrap(), ids);
    let text = output(&answer, "prompt_token_texts").to_texts().unwrap().concat();
    let tokens: Vec<u32> = ids.iter().map(|token| *token as u32).collect();
    let decoded = model.prompts.tokenizer.as_ref().unwrap().decode(&tokens, false);
    assert_eq!(text, decoded.unwrap());
    let rows = model.engine.score(&tokens).unwrap();
    let logprobs = output(&answer, "prompt_logprobs").to_f32().unwrap();
    assert_eq!(logprobs.len(), ids.len() - 1);
    let top = output(&answer, "prompt_top_tokens");
    let top_logprobs = output(&answer, "prompt_top_logprobs").to_f32().unwrap();
    assert_eq!(top.shape, [ids.len() - 1, 2]);
    for (place, (row, token)) in rows.iter().zip(&tokens[1..]).enumerate() {
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        let expected = f64::from(row[*token as usize]) - sum.ln();
        assert!((f64::from(logprobs[place]) - expected).abs() < 1e-4, "{place}");
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        assert_eq!(top.to_i64().unwrap()[2 * place], i64::try_from(best).unwrap());
        assert!(top_logprobs[2 * place] >= logprobs[place]);
    }
    let names = |answer: &Outputs| {
        answer
            .iter()
            .map(|output| output.name.clone())
            .collect::<Vec<_>>()
    };
    let one = names(&ask(&mut model, &ids[..1], 2).unwrap());
    assert!(one.contains(&"prompt_tokens".into()) && !one.contains(&"prompt_logprobs".into()));
    assert!(!names(&ask(&mut model, &ids, 0).unwrap()).contains(&"prompt_top_tokens".into()));
    let error = ask(&mut model, &ids, 21).unwrap_err().to_string();
    assert!(error.contains("prompt_logprobs 21 is invalid"), "{error}");
}

#[test]
fn an_answer_goes_on_after_the_end_of_sequence_if_the_request_ignores_it() {
    let ask = |model: &mut LanguageModel<Cpu>, more: Vec<Tensor>| {
        let mut inputs = vec![text("one"), number("max_tokens", 12)];
        inputs.extend(more);
        model.run(&[inputs]).remove(0).unwrap()
    };
    let plain = tokens(&ask(&mut model(|_| ()), vec![]));
    let config =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gpt2/config.json"))
            .unwrap();
    let end = config.replace("\"eos_token_id\": 0", &format!("\"eos_token_id\": {}", plain[3]));
    assert_ne!(end, config);
    let mut ending = of(&directory(&[("config.json", &end)]));
    let ended = ask(&mut ending, vec![]);
    assert!(tokens(&ended).len() <= 4, "{ended:?}");
    let flag = |value: u8| Tensor {
        name: "ignore_eos".to_owned(),
        shape: vec![1],
        datatype: crate::Datatype::Bool,
        data: vec![value].into(),
    };
    assert_eq!(ask(&mut ending, vec![flag(0)]), ended);
    let going_on = ask(&mut ending, vec![flag(1)]);
    assert_eq!(tokens(&going_on), plain);
    assert_eq!(output(&going_on, "end").to_texts().unwrap(), ["length"]);
    assert!(
        ending
            .run(&[vec![text("one"), number("ignore_eos", 1)]])
            .remove(0)
            .is_err()
    );
}

#[test]
fn an_answer_shows_the_special_tokens_that_its_parts_are_marked_by() {
    let json = std::fs::read_to_string(directory(&[]).path().join("tokenizer.json")).unwrap();
    // Turns three tokens of the checkpoint into special tokens.
    let names = [("7", "<think>"), ("8", "[TOOL_CALLS]"), ("9", "[OTHER]")];
    let json = names.iter().fold(json, |json, (old, new)| {
        json.replacen(&format!("\"{old}\""), &format!("\"{new}\""), 1)
    });
    let mut tokenizer: serde_json::Value = serde_json::from_str(&json).unwrap();
    let id = |tokenizer: &serde_json::Value, name: &str| tokenizer["model"]["vocab"][name].clone();
    for (_, name) in names {
        let mark = serde_json::json!({
            "id": id(&tokenizer, name), "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        });
        tokenizer["added_tokens"].as_array_mut().unwrap().push(mark);
    }
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}[TOOL_CALLS]<think></think>";
    let text = tokenizer.to_string();
    let dir = directory(&[("chat_template.jinja", template), ("tokenizer.json", &text)]);
    let model = of(&dir);
    let marks = |choice: Option<&str>, is_chat| {
        let tools = r#"[{"type": "function", "function": {"name": "f"}}]"#;
        let mut inputs = vec![Tensor::from_texts("tools", &[tools]).unwrap()];
        inputs.extend(choice.map(|choice| Tensor::from_texts("tool_choice", &[choice]).unwrap()));
        let tools = Tools::read(&inputs).unwrap().filter(|_| choice.is_some());
        model.prompts.marks(tools.as_ref(), is_chat)
    };
    let ids = |names: &[&str]| -> Vec<u32> {
        let ids = names.iter().map(|name| id(&tokenizer, name).as_u64().unwrap());
        ids.map(|id| u32::try_from(id).unwrap()).collect()
    };
    assert_eq!(marks(None, false), ids(&[]));
    assert_eq!(marks(None, true), ids(&["<think>"]));
    assert_eq!(marks(Some("none"), true), ids(&["<think>"]));
    assert_eq!(marks(Some("auto"), true), ids(&["<think>", "[TOOL_CALLS]"]));
}

#[test]
fn an_answer_that_ends_within_its_reasoning_has_no_text_and_no_confidence() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>";
    let json = std::fs::read_to_string(directory(&[]).path().join("tokenizer.json")).unwrap();
    // Turns one token of the checkpoint into the marker.
    let mark = r#"{"id":63,"content":"<think>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false}"#;
    let mut tokenizer: serde_json::Value =
        serde_json::from_str(&json.replacen("\"9\"", "\"<think>\"", 1)).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    added.push(serde_json::from_str(mark).unwrap());
    let tokenizer = tokenizer.to_string();
    let dir = directory(&[("chat_template.jinja", template), ("tokenizer.json", &tokenizer)]);
    let mut model = of(&dir);
    let chat = Tensor::from_texts("messages", &[r#"[{"role": "user", "content": "the one"}]"#]).unwrap();
    let ask = |model: &mut LanguageModel<Cpu>, inputs: Inputs| {
        // Like the executor, which tokenizes prompts on another thread.
        let read = model.preprocessor().unwrap()(&inputs).unwrap();
        model
            .run(&[read, inputs])
            .into_iter()
            .map(Result::unwrap)
            .collect::<Vec<_>>()
    };
    for answer in ask(&mut model, vec![chat.clone(), number("max_tokens", 5)]) {
        let reasoning = output(&answer, REASONING).to_texts().unwrap().concat();
        assert!(!reasoning.is_empty());
        assert_eq!(output(&answer, "text").to_texts().unwrap(), [""]);
        assert_eq!(output(&answer, "confidence").to_f32().unwrap(), [0.0]);
        assert_eq!(output(&answer, REASONING_TOKENS).to_i64().unwrap(), [5]);
        assert_eq!(tokens(&answer).len(), 5);
    }
    // A constrained answer has no reasoning.
    let format = Tensor::from_texts("response_format", &[r#"{"type": "choice", "choice": ["a b"]}"#]);
    for answer in ask(&mut model, vec![chat, format.unwrap()]) {
        assert!(answer.iter().all(|output| output.name != REASONING));
        assert_eq!(output(&answer, "text").to_texts().unwrap(), ["a b"]);
    }
    let text = Tensor::from_texts("text", &["the one<think>"]).unwrap();
    let [answer, _] = ask(&mut model, vec![text]).try_into().unwrap();
    assert!(answer.iter().all(|output| output.name != REASONING), "no chat");
}

#[test]
fn parts_of_an_answer_describe_their_tokens() {
    let mut model = model(|_| ());
    model
        .submit(
            1,
            &vec![text("one"), number("max_tokens", 6), number("top_logprobs", 2)],
        )
        .unwrap();
    let mut parts = Vec::new();
    let whole = loop {
        let Progress { part, end, .. } = model.step().remove(0);
        parts.push(part);
        if let Some(end) = end {
            break end.unwrap();
        }
    };
    for name in ["probabilities", "top_logprobs"] {
        let of_parts: Vec<f32> = parts
            .iter()
            .flat_map(|part| output(part, name).to_f32().unwrap())
            .collect();
        assert_eq!(of_parts, output(&whole, name).to_f32().unwrap(), "{name}");
    }
    for name in ["token_texts", "top_token_texts"] {
        let of_parts: Vec<&str> = parts
            .iter()
            .flat_map(|part| output(part, name).to_texts().unwrap())
            .collect();
        assert_eq!(of_parts, output(&whole, name).to_texts().unwrap(), "{name}");
    }
}

#[test]
fn each_step_of_a_beam_search_is_one_progress_and_the_last_has_the_answer() {
    let mut model = model(|_| ());
    let asked = vec![
        text("one"),
        number("max_tokens", 6),
        number("top_logprobs", 2),
        number("num_beams", 3),
    ];
    model.submit(1, &asked).unwrap();
    let mut steps = 0;
    let (part, whole) = loop {
        let [progress] = model.step().try_into().unwrap();
        steps += 1;
        if let Some(end) = progress.end {
            break (progress.part, end.unwrap());
        }
        assert_eq!((progress.pieces, progress.part), (0, Outputs::new()));
    };
    assert_eq!((steps, tokens(&whole).len()), (6, 6));
    for name in ["tokens", "probabilities", "top_logprobs", "token_texts", "text"] {
        assert_eq!(output(&part, name), output(&whole, name), "{name}");
    }
    // A request for `prompt_logprobs` disables the default beams, and rejects stated ones.
    let described = vec![text("one"), number("num_beams", 2), number("prompt_logprobs", 0)];
    let error = model.submit(2, &described).unwrap_err().to_string();
    assert!(
        error.contains("does not go together with prompt_logprobs"),
        "{error}"
    );
}

#[test]
fn the_streamed_parts_add_up_to_the_answer() {
    let mut model = model(|_| ());
    model.submit(7, &vec![text("on the one hand")]).unwrap();
    let (mut read, mut pieces, mut ended) = (String::new(), Vec::new(), None);
    while ended.is_none() {
        for progress in model.step() {
            assert_eq!(progress.number, 7);
            pieces.push(progress.pieces);
            read.push_str(output(&progress.part, "text").to_texts().unwrap()[0]);
            ended = progress.end;
        }
    }
    let outputs = ended.unwrap().unwrap();
    assert_eq!(output(&outputs, "text").to_texts().unwrap(), [read.as_str()]);
    assert_eq!(pieces, (1..=24).collect::<Vec<u32>>());
}
