//! Tests of the subject grammar.

use proptest::prelude::*;

use super::*;

fn token() -> impl Strategy<Value = String> {
    "[A-Za-z0-9_-]{1,64}"
}

#[test]
fn replies_to_reserved_subjects_are_refused() {
    for reply in ["_INBOX.abc.1", "_INBOX_mine.x", "answers.of.mine", "kaskades"] {
        assert!(is_reply_allowed(reply), "{reply}");
    }
    for reply in [
        "kaskade.app.stage.large",
        "kaskade",
        "$JS.API.STREAM.DELETE.x",
        "$KV.plans.app",
        "$SRV.PING",
    ] {
        assert!(!is_reply_allowed(reply), "{reply}");
    }
}

#[test]
fn ids_of_any_text_have_subjects_of_their_own() {
    let app = App::new("digits").unwrap();
    assert_eq!(
        app.result("order-7_a").as_str(),
        "kaskade.digits.result.order-7_a"
    );
    assert_eq!(
        app.dead("a.b>c=*é").as_str(),
        "kaskade.digits.dead.a=2eb=3ec=3d=2a=c3=a9"
    );
    assert_eq!(
        app.parse("kaskade.digits.result.a=2eb"),
        Some(Route::Result("a=2eb"))
    );
    assert_eq!(app.parse("kaskade.digits.dead.*"), None);
}

proptest! {
    #[test]
    fn no_two_ids_share_a_subject(one in "[!-~]{1,20}", other in "[!-~]{1,20}") {
        let app = App::new("digits").unwrap();
        prop_assert_eq!(app.result(&one) == app.result(&other), one == other);
        prop_assert!(matches!(app.parse(&app.result(&one)), Some(Route::Result(_))));
    }

    #[test]
    fn what_is_formatted_is_parsed_back(app in token(), name in token(), id in any::<u64>()) {
        let app = App::new(&app).unwrap();
        let formatted = [
            (app.infer(), Route::Infer),
            (app.submit(), Route::Submit),
            (app.gear(), Route::Gear),
            (app.replan(), Route::Replan),
            (app.stored_plan(), Route::StoredPlan),
            (app.plan(), Route::Plan),
            (app.stage(&name).unwrap(), Route::Stage(&name)),
            (app.replica(&name).unwrap(), Route::Replica(&name)),
            (app.beat(&name).unwrap(), Route::Beat(&name)),
            (app.ingress(&name).unwrap(), Route::Ingress(&name)),
            (app.event(&name).unwrap(), Route::Event(&name)),
        ];
        for (subject, route) in &formatted {
            prop_assert_eq!(app.parse(subject), Some(*route));
        }
        let attempt = (id >> 40) as u32;
        let done = app.done(&name, id, attempt, "1-2-3").unwrap();
        let route = Route::StageReply { ingress: &name, id, attempt, token: "1-2-3" };
        prop_assert_eq!(app.parse(&done), Some(route));
        prop_assert_eq!(app.parse_done(&done), Some((id, attempt, "1-2-3")));
        prop_assert!(done.starts_with(app.done_all(&name).unwrap().trim_end_matches(['*', '.'])));
    }

    #[test]
    fn names_that_nats_would_read_are_refused(
        before in "[a-z]{0,5}",
        hostile in "[.*> \t\r\n\u{0}$:/\\\\é\u{2603}]",
        after in "[a-z]{0,5}",
    ) {
        let name = format!("{before}{hostile}{after}");
        prop_assert!(App::new(&name).is_err());
        let app = App::new("digits").unwrap();
        prop_assert!(app.stage(&name).is_err());
        prop_assert!(app.replica(&name).is_err());
        prop_assert!(app.done(&name, 1, 1, "t").is_err());
        prop_assert!(app.done("in", 1, 1, &name).is_err());
        prop_assert!(app.done_all(&name).is_err());
        prop_assert!(app.beat(&name).is_err());
        prop_assert!(app.ingress(&name).is_err());
        prop_assert!(app.event(&name).is_err());
    }

    #[test]
    fn a_parsed_subject_is_formatted_back(subject in "kaskade\\.a\\.(stage|done|beat|ingress|infer|gear)[a-z0-9.+*-]{0,12}") {
        let app = App::new("a").unwrap();
        let again = match app.parse(&subject) {
            None => return Ok(()),
            Some(Route::Stage(name)) => app.stage(name).unwrap(),
            Some(Route::StageReply { ingress, id, attempt, token }) => {
                app.done(ingress, id, attempt, token).unwrap()
            }
            Some(Route::Beat(name)) => app.beat(name).unwrap(),
            Some(Route::Ingress(name)) => app.ingress(name).unwrap(),
            Some(Route::Infer) => app.infer(),
            Some(Route::Gear) => app.gear(),
            Some(Route::Replan) => app.replan(),
            Some(Route::StoredPlan) => app.stored_plan(),
            Some(other) => panic!("{subject} became {other:?}"),
        };
        prop_assert_eq!(again.as_str(), subject);
    }
}

#[test]
fn a_refusal_names_what_and_why() {
    assert_eq!(
        App::new("a.b").unwrap_err().to_string(),
        "the app's name \"a.b\" contains '.'; use letters, digits, `-` and `_`"
    );
    assert!(matches!(App::new(""), Err(SubjectError::Empty { what: "app" })));
    assert!(matches!(
        App::new(&"x".repeat(65)),
        Err(SubjectError::TooLong { length: 65, .. })
    ));
}

#[test]
fn another_apps_subject_is_not_ours() {
    let app = App::new("digits").unwrap();
    assert_eq!(app.name(), "digits");
    assert_eq!(app.parse("kaskade.other.infer"), None);
    assert_eq!(app.parse("kaskade.digits.infer.more"), None);
    assert_eq!(app.parse_done("kaskade.digits.done.in.007.1.t"), None);
    assert_eq!(app.parse_done("kaskade.digits.done.in.7"), None);
    assert_eq!(app.parse_done("kaskade.digits.done.in.7.1"), None);
    assert_eq!(app.parse_done("kaskade.digits.done.in.7.4294967296.t"), None);
    assert_eq!(app.parse_done("kaskade.digits.stage.s"), None);
}
