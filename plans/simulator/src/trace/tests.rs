use proptest::prelude::*;

use super::*;

fn gaps(arrivals: impl Iterator<Item = u64>) -> (f64, f64) {
    let times: Vec<u64> = arrivals.collect();
    let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    (mean, variance.sqrt() / mean)
}

#[test]
fn counts_are_read_and_errors_name_line_and_field() {
    let trace = Trace::from_counts("52 55\n48\t0\n").unwrap();
    assert_eq!(trace.rates(), [52.0, 55.0, 48.0, 0.0]);
    for (text, message) in [
        ("1 2\n3 x 5", "line 2, field 2: `x`"),
        ("1.5", "line 1, field 1"),
        ("-1", "line 1, field 1"),
        (" \n", "holds no arrival"),
    ] {
        let error = Trace::from_counts(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn an_azure_trace_is_read_with_its_tokens_also_over_midnight() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
        2024-02-28 23:59:59.5000000,374,44\r\n\
        2024-02-29 00:00:00.2500009,396,109\r\n\
        2024-03-01 00:00:00,1,2\r\n";
    let trace = Trace::from_azure_llm(text).unwrap();
    assert_eq!(trace.times().unwrap(), [0, 750_000, 86_400_500_000]);
    let second = Tokens {
        context: 396,
        generated: 109,
    };
    assert_eq!(trace.tokens()[1], second);
}

#[test]
fn every_year_is_as_long_as_it_was() {
    let micros = |year: u32| parse::time_stamp(&format!("{year:04}-01-01 00:00:00")).unwrap();
    let days = |from, to| (micros(to) - micros(from)) / SECOND / 86_400;
    for (year, length) in [(1900, 365), (2000, 366), (2023, 365), (2024, 366), (2100, 365)] {
        assert_eq!(days(year, year + 1), length, "{year}");
    }
    assert_eq!(days(1970, 2023), 19_358);
}

#[test]
fn what_is_no_azure_trace_is_refused_by_line_and_field() {
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    for (text, message) in [
        ("a,b\n", "line 1: `a,b`"),
        ("", "line 1"),
        (header, "holds no arrival"),
        (
            &format!("{header}2023-13-01 00:00:00,1,1"),
            "line 2, field `TIMESTAMP`",
        ),
        (&format!("{header}2023-02-29 00:00:00,1,1"), "TIMESTAMP"),
        (&format!("{header}2023-11-01 00:00,1,1"), "TIMESTAMP"),
        (&format!("{header}2023-11-01 00:00:00.x,1,1"), "TIMESTAMP"),
        (
            &format!("{header}2023-11-01 00:00:00,,1"),
            "line 2, field `ContextTokens`: ``",
        ),
        (
            &format!("{header}2023-11-01 00:00:00,1"),
            "line 2, field `GeneratedTokens`",
        ),
        (
            &format!("{header}2023-11-01 00:00:00,1,2,3"),
            "`3` is not the last one",
        ),
        (
            &format!("{header}2023-11-01 00:00:01,1,2\n2023-11-01 00:00:00,1,2"),
            "line 3: 2023-11-01 00:00:00,1,2 comes before",
        ),
    ] {
        let error = Trace::from_azure_llm(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn times_are_read_and_their_errors_name_the_line() {
    let trace = Trace::from_times("# t\n0.5\n\n1\n").unwrap();
    assert_eq!(trace.times().unwrap(), [500_000, 1_000_000]);
    for (text, message) in [
        ("1\nx\n", "line 2: `x`"),
        ("2\n1\n", "line 2: 1 s comes before"),
        ("-1\n", "line 1"),
        ("NaN\n", "line 1"),
        ("# none\n", "holds no arrival"),
    ] {
        let error = Trace::from_times(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_time_that_no_trace_lasts_is_refused_before_it_costs_memory() {
    for far in ["1700000000", "1e300", "10000000.1"] {
        let error = Trace::from_times(&format!("0\n{far}\n")).unwrap_err();
        assert!(matches!(error, TraceError::TooLong { line: 2, .. }), "{error}");
    }
    assert_eq!(Trace::from_times("10000000").unwrap().seconds(), 10_000_001);
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens";
    let years = format!("{header}\n0000-01-01 00:00:00,1,2\n9999-12-31 00:00:00,1,2");
    let error = Trace::from_azure_llm(&years).unwrap_err();
    assert!(matches!(error, TraceError::TooLong { line: 3, .. }), "{error}");
}

#[test]
fn traces_are_scaled_cut_and_freed_of_idle_seconds() {
    let trace = Trace::from_counts("0 10 0 40 20").unwrap();
    assert_eq!(
        trace.scale_to_peak(80.0).unwrap().rates(),
        [0.0, 20.0, 0.0, 80.0, 40.0]
    );
    assert_eq!(trace.excerpt(1, 3).unwrap().rates(), [10.0, 0.0, 40.0]);
    assert_eq!(trace.without_idle_seconds().unwrap().rates(), [10.0, 40.0, 20.0]);
    assert_eq!(
        trace.excerpt(3, 3).unwrap_err().to_string(),
        "3 s from second 3 on do not lie in a trace of 5 s"
    );
    assert!(trace.excerpt(3, 0).is_err() && trace.excerpt(usize::MAX, 2).is_err());
    assert!(matches!(trace.scale(-1.0), Err(TraceError::Factor { .. })));
    assert!(Trace::from_counts("0 0").unwrap().scale_to_peak(10.0).is_err());
    assert!(matches!(
        Trace::per_second(vec![1.0, f64::NAN]),
        Err(TraceError::Rate { second: 1, .. })
    ));
}

#[test]
fn arrival_times_survive_cutting_and_lose_idle_seconds() {
    let trace = Trace::from_times("0.5\n3.25\n3.75\n5.5\n").unwrap();
    assert_eq!(trace.seconds(), 6);
    assert_eq!(trace.rates(), [1.0, 0.0, 0.0, 2.0, 0.0, 1.0]);
    assert_eq!(trace.excerpt(3, 2).unwrap().times().unwrap(), [250_000, 750_000]);
    let dense = trace.without_idle_seconds().unwrap();
    assert_eq!(dense.times().unwrap(), [500_000, 1_250_000, 1_750_000, 2_500_000]);
    let arrivals: Vec<u64> = dense.arrivals(ArrivalProcess::Poisson, 9).collect();
    assert_eq!(arrivals, dense.times().unwrap());
    assert_eq!(trace.scale(2.0).unwrap().rates(), [2.0, 0.0, 0.0, 4.0, 0.0, 2.0]);
}

#[test]
fn statistics_describe_the_load() {
    let trace = Trace::from_counts("10 30 10 30").unwrap();
    let found = trace.statistics();
    assert_eq!((found.seconds, found.requests), (4, 80.0));
    assert_eq!((found.mean_qps, found.peak_qps, found.cv), (20.0, 30.0, 0.5));
    assert_eq!(trace.load_distribution(3, 30.0), [0.0, 0.5, 0.5]);
    assert_eq!(
        trace.load_distribution(2, 20.0),
        [0.0, 1.0],
        "10 begins the second range; 30 is above all"
    );
}

#[test]
fn even_arrivals_keep_every_count() {
    let trace = Trace::from_counts("3 0 1 5").unwrap();
    let mut counts = [0; 4];
    let arrivals = trace.arrivals(ArrivalProcess::Constant, 0);
    arrivals.for_each(|at| counts[(at / SECOND) as usize] += 1);
    assert_eq!(counts, [3, 0, 1, 5]);
    let ten = Trace::constant(10.0, 1).unwrap();
    let times: Vec<u64> = ten.arrivals(ArrivalProcess::Constant, 0).collect();
    assert_eq!(times.len(), 10);
    assert!(
        (0..10)
            .zip(&times)
            .all(|(n, at)| at.abs_diff(50_000 + n * 100_000) <= 1),
        "{times:?}"
    );
}

#[test]
fn random_arrivals_have_the_mean_and_the_variation_asked_for() {
    let trace = Trace::constant(500.0, 200).unwrap();
    for (process, variation) in [
        (ArrivalProcess::Poisson, 1.0),
        (ArrivalProcess::Gamma { cv: 0.5 }, 0.5),
        (ArrivalProcess::Gamma { cv: 1.0 }, 1.0),
        (ArrivalProcess::Gamma { cv: 3.0 }, 3.0),
    ] {
        let (mean, cv) = gaps(trace.arrivals(process, 7));
        assert!((mean / 2_000.0 - 1.0).abs() < 0.04, "{process:?}: {mean}");
        assert!((cv / variation - 1.0).abs() < 0.06, "{process:?}: {cv}");
    }
}

#[test]
fn poisson_counts_scatter_as_such_counts_do() {
    let trace = Trace::constant(100.0, 2_000).unwrap();
    let mut counts = vec![0.0; 2_000];
    let arrivals = trace.arrivals(ArrivalProcess::Poisson, 3);
    arrivals.for_each(|at| counts[(at / SECOND) as usize] += 1.0);
    let counted = Trace::per_second(counts).unwrap().statistics();
    assert!((counted.mean_qps - 100.0).abs() < 1.0);
    assert!((counted.cv - 0.1).abs() < 0.01, "{}", counted.cv);
}

#[test]
fn generators_make_what_they_say() {
    let day = Diurnal {
        low_qps: 10.0,
        high_qps: 110.0,
        period_s: 100.0,
        noise: 0.0,
    };
    let rates = day.trace(101, 1).unwrap().rates();
    assert!((rates[0] - 10.0).abs() < 1e-9 && (rates[50] - 110.0).abs() < 1e-9);
    assert!((rates[25] - 60.0).abs() < 1e-9 && (rates[100] - 10.0).abs() < 1e-9);

    let spike = Spike {
        base_qps: 5.0,
        peak_qps: 50.0,
        start_s: 2,
        length_s: 2,
    };
    assert_eq!(spike.trace(6).unwrap().rates(), [5.0, 5.0, 50.0, 50.0, 5.0, 5.0]);

    let zipf = Zipf {
        peak_qps: 400.0,
        levels: 4,
        exponent: 1.0,
        hold_s: 5,
    };
    let trace = zipf.trace(100_002, 1).unwrap();
    assert_eq!(trace.seconds(), 100_002);
    let total = 1.0 + 1.0 / 2.0 + 1.0 / 3.0 + 1.0 / 4.0;
    let mut held = [0.0; 4];
    for rate in trace.rates() {
        held[(rate / 100.0) as usize - 1] += 1.0 / 100_002.0;
    }
    for (level, share) in (1..).zip(held) {
        assert!((share - 1.0 / f64::from(level) / total).abs() < 0.02, "{held:?}");
    }
}

fn autocorrelation(rates: &[f64], lag: usize) -> f64 {
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let variance: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
    let together = rates.iter().zip(&rates[lag..]);
    together.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>() / variance
}

/// The figures of the trace that it imitates are in [`TwitterLike`].
#[test]
fn a_twitter_like_trace_has_the_mean_the_memory_and_the_bursts() {
    let trace = TwitterLike { mean_qps: 64.0 }.trace(86_400, 4).unwrap();
    let found = trace.statistics();
    assert!((found.mean_qps - 64.0).abs() < 1e-6);
    assert!((0.45..0.85).contains(&found.cv), "{found:?}");
    assert!(
        (4.0..10.0).contains(&(found.peak_qps / found.mean_qps)),
        "{found:?}"
    );
    let rates = trace.rates();
    assert!(autocorrelation(&rates, 1) > 0.9, "{}", autocorrelation(&rates, 1));
    assert!(
        (0.6..0.95).contains(&autocorrelation(&rates, 60)),
        "{}",
        autocorrelation(&rates, 60)
    );
}

#[test]
fn senseless_figures_are_refused_by_name() {
    let day = Diurnal {
        low_qps: 10.0,
        high_qps: f64::NAN,
        period_s: 100.0,
        noise: 0.0,
    };
    assert!(day.trace(10, 0).unwrap_err().to_string().starts_with("high_qps"));
    let zipf = Zipf {
        peak_qps: 1.0,
        levels: 0,
        exponent: 1.0,
        hold_s: 1,
    };
    assert!(
        zipf.trace(10, 0)
            .unwrap_err()
            .to_string()
            .starts_with("levels: 0")
    );
    assert!(TwitterLike { mean_qps: -1.0 }.trace(10, 0).is_err());
    assert_eq!(Trace::constant(1.0, 0), Err(TraceError::Empty));
}

proptest! {
    #[test]
    fn arrivals_ascend_end_in_time_and_repeat(
        rates in prop::collection::vec(0.0..200.0_f64, 1..20),
        cv in 0.1..4.0_f64,
        seed in any::<u64>(),
    ) {
        let trace = Trace::per_second(rates.clone()).unwrap();
        for process in [ArrivalProcess::Constant, ArrivalProcess::Poisson, ArrivalProcess::Gamma { cv }] {
            let times: Vec<u64> = trace.arrivals(process, seed).collect();
            prop_assert!(times.is_sorted());
            prop_assert!(times.last().is_none_or(|last| *last < rates.len() as u64 * SECOND));
            prop_assert!(times.iter().all(|at| rates[(at / SECOND) as usize] > 0.0));
            prop_assert_eq!(&times, &trace.arrivals(process, seed).collect::<Vec<_>>());
            if process == ArrivalProcess::Constant {
                let total: f64 = rates.iter().sum();
                prop_assert!((times.len() as f64 - total).abs() <= 0.5 + 1e-6, "{} of {total}", times.len());
            }
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC{0,80}|[-0-9:. ,\n#x]{0,80}") {
        let header = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{text}");
        let _ = (Trace::from_counts(&text), Trace::from_times(&text), Trace::from_azure_llm(&header));
    }
}

#[test]
fn the_part_around_the_busiest_second_is_as_long_as_asked_for() {
    let trace = Trace::per_second(vec![1.0, 2.0, 3.0, 9.0, 3.0, 2.0, 1.0]).unwrap();
    let (part, from) = trace.around_busiest(3).unwrap();
    assert_eq!((part.rates(), from), (vec![3.0, 9.0, 3.0], 2));
    let early = Trace::per_second(vec![9.0, 1.0, 1.0]).unwrap();
    assert_eq!(early.around_busiest(2).unwrap().0.rates(), [9.0, 1.0]);
    let late = Trace::per_second(vec![1.0, 1.0, 9.0]).unwrap();
    assert_eq!(late.around_busiest(2).unwrap().1, 1);
    assert_eq!(trace.around_busiest(100).unwrap(), (trace.clone(), 0));
    assert!(trace.around_busiest(0).is_err());
}
