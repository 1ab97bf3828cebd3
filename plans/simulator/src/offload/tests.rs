use proptest::prelude::*;

use super::*;
use crate::offload::decoders::{opt_models, rtx_4090};

/// A small decoder, so that a run takes no time.
fn small() -> Shape {
    Shape {
        name: "small".to_owned(),
        layers: 4,
        width: 256,
        kv_width: 256,
        inner: 1_024,
        gated: false,
        vocabulary: 1_000,
        context: 512,
        element_bytes: 2,
    }
}

/// A machine on which that decoder is bound by the link, with room for two layers and some blocks.
fn machine() -> Hardware {
    Hardware {
        name: "small".to_owned(),
        flops: 1e12,
        memory_bytes_per_s: 20e9,
        device_bytes: 60_000_000,
        host_bytes: 500_000_000,
        link_bytes_per_s: 0.5e9,
        transfer_s: 1e-6,
        launch_s: 1e-6,
    }
}

fn load(requests: usize, prompt: usize, answer: usize) -> Load {
    Load {
        requests,
        prompt,
        answer,
        block_tokens: 16,
    }
}

fn outcome(hardware: &Hardware, shape: &Shape, load: &Load, mode: Mode) -> (Setup, OffloadOutcome) {
    let machine = Machine { hardware, shape };
    let setup = machine.setup(load, mode).unwrap();
    let outcome = machine.run(&setup, load).unwrap();
    (setup, outcome)
}

#[test]
fn work_is_priced_by_hand() {
    let (hardware, shape) = (machine(), small());
    // 1000 tokens, 256 to 512: 2.62e8 operations at 1e12/s, and 1000 x 1536 + 262144 bytes at 20e9/s.
    let gen_s = hardware.kv_gen_s(&shape, 1_000);
    assert!((gen_s - (2e-6 + 2.62144e-4)).abs() < 1e-12, "{gen_s}");
    // One token: reading 12 x 256 x 256 weights of 2 bytes is what takes time, and 4 vectors; then 100 tokens of keys and values.
    let forward = Forward {
        rows: 1,
        pairs: 100,
        read: 100,
    };
    let seconds = hardware.forward_s(&shape, forward);
    let expected = 12e-6 + (1_572_864.0 + 4.0 * 512.0) / 20e9 + 100.0 * 1_024.0 / 20e9;
    assert!((seconds - expected).abs() < 1e-12, "{seconds} {expected}");
    assert!((hardware.load_s(1e9, 3) - 2.000_003).abs() < 1e-9);
    assert!(hardware.kv_gen_s(&shape, 0).abs() < 1e-15);
}

#[test]
fn a_step_of_keys_and_values_takes_what_the_link_carries() {
    let (mut hardware, shape) = (machine(), small());
    hardware.device_bytes = 24_000_000;
    let load = load(32, 240, 32);
    let (setup, outcome) = outcome(&hardware, &shape, &load, Mode::Kv);
    assert_eq!(setup.split.shares().act.to_bits(), 0.0_f64.to_bits());
    let bytes = outcome.decode.traffic;
    assert_eq!(bytes.act, 0);
    // Steps at 241 to 271 tokens, whose last is not in the cache yet.
    let blocks: usize = (241..272_usize).map(|tokens| (tokens - 1).div_ceil(16)).sum();
    let all = (32 * blocks * 16) as u64 * shape.kv_bytes() * 4;
    let on_device = setup.capacity.device.kv as u64;
    assert!(bytes.kv <= all && bytes.kv + 31 * on_device * setup.memory.kv_block_bytes >= all);
    let link_s = bytes.loaded() as f64 / hardware.link_bytes_per_s;
    assert!(
        outcome.decode.seconds >= link_s && outcome.decode.seconds < 1.15 * link_s,
        "{outcome:?}"
    );
    assert_eq!(
        (outcome.tokens, outcome.decode_steps, outcome.preempted),
        (32 * 32, 31, 0)
    );
}

#[test]
fn an_act_block_is_half_a_kv_block_on_the_link() {
    let shape = small();
    // No room on the device but for buffers, so that everything is carried.
    let mut hardware = machine();
    hardware.device_bytes = 24_000_000;
    let load = load(16, 256, 16);
    let run = |mode| {
        let machine = Machine {
            hardware: &hardware,
            shape: &shape,
        };
        let mut setup = machine.setup(&load, mode).unwrap();
        setup.capacity.device = kaskade_policy::hybrid_cache::BlockCounts::default();
        setup.capacity.host = kaskade_policy::hybrid_cache::BlockCounts {
            act: 1_000,
            kv: 1_000,
        };
        machine.run(&setup, &load).unwrap().decode.traffic
    };
    let (kv, act) = (run(Mode::Kv), run(Mode::Act));
    assert_eq!((kv.act, act.kv), (0, 0));
    assert_eq!(kv.kv, 2 * act.act);
    assert_eq!(kv.stored, 2 * act.stored);
    // Whatever is cached as what, every block is carried once per step: 257 to 271 tokens, the last of which is not cached yet.
    let blocks: usize = (257..272_usize).map(|tokens| (tokens - 1).div_ceil(16)).sum();
    let even = run(Mode::Even);
    let layers = 16 * 4;
    assert_eq!(kv.kv / (layers * shape.kv_bytes()), 16 * blocks as u64);
    assert_eq!(
        even.kv / (layers * shape.kv_bytes()) + even.act / (layers * shape.act_bytes()),
        16 * blocks as u64
    );
    assert!(even.kv > 0 && even.act > 0);
    // 15 steps, 16 requests, 4 layers, 1024 bytes of keys and values each.
    assert_eq!(kv.stored, 15 * 16 * 4 * 1_024);
}

#[test]
fn the_setup_predicts_the_mean_step() {
    let (mut hardware, shape) = (machine(), small());
    hardware.device_bytes = 24_000_000;
    for mode in [Mode::Hybrid, Mode::Kv, Mode::Act, Mode::Even, Mode::Algorithm1] {
        let load = load(24, 200, 64);
        let (setup, outcome) = outcome(&hardware, &shape, &load, mode);
        let off = setup.step_s / outcome.step_s() - 1.0;
        assert!(off.abs() < 0.01, "{mode:?}: {off}");
        // The policy's own formula, without any walk, is near too.
        let mini_batches = setup.mini_batches();
        let formula = setup.split.step_s(&setup.costs, shape.layers, mini_batches);
        let off = formula / setup.step_s - 1.0;
        assert!(off.abs() < 0.15, "{mode:?}: {off}");
    }
}

#[test]
fn without_mini_batches_the_device_bounds_the_batch() {
    let (hardware, shape) = (machine(), small());
    let load = load(200, 240, 16);
    let (setup, outcome) = outcome(&hardware, &shape, &load, Mode::NoMiniBatches);
    assert!(setup.limits.requests < 200, "{setup:?}");
    assert!(setup.arena.total() <= hardware.device_bytes);
    assert_eq!(outcome.decode.traffic.cache(), 0);
    let waves = 200_usize.div_ceil(setup.limits.requests);
    assert_eq!((outcome.decode_steps, outcome.tokens), (waves * 15, 200 * 16));
}

#[test]
fn tokens_alone_carry_no_blocks_and_compute_everything() {
    let (hardware, shape) = (machine(), small());
    let load = load(8, 100, 8);
    let (_, tokens) = outcome(&hardware, &shape, &load, Mode::Tokens);
    let (_, kv) = outcome(&hardware, &shape, &load, Mode::Kv);
    assert_eq!(
        (tokens.decode.traffic.cache(), tokens.decode.traffic.stored),
        (0, 0)
    );
    assert!(tokens.decode.busy_s > 5.0 * kv.decode.busy_s);
}

#[test]
fn computing_tokens_again_trades_the_link_for_the_device() {
    let (mut hardware, shape) = (machine(), small());
    hardware.device_bytes = 24_000_000;
    let machine = Machine {
        hardware: &hardware,
        shape: &shape,
    };
    let load = load(16, 256, 16);
    let setup = machine.setup(&load, Mode::Kv).unwrap();
    let again = |share| machine.step_with_recomputation(&setup, &load, 257, 16, share);
    let whole = machine.step(&setup, &load, 257, 16);
    assert_eq!(again(0.0), whole);
    let (half, all) = (again(0.5), again(1.0));
    assert!(half.traffic.kv < whole.traffic.kv && half.busy_s > whole.busy_s);
    assert!(all.traffic.kv == 0 && all.busy_s > half.busy_s);
    // What is computed again in full is a prompt of as many tokens and one.
    let rows = Forward {
        rows: 257,
        pairs: 257 * 258 / 2,
        read: 257,
    };
    let prompts = 16.0 * 4.0 * hardware.forward_s(&shape, rows);
    assert!(
        (all.busy_s / prompts - 1.0).abs() < 0.1,
        "{} {prompts}",
        all.busy_s
    );
}

#[test]
fn a_host_too_small_for_all_serves_them_in_turn() {
    let (mut hardware, shape) = (machine(), small());
    hardware.device_bytes = 12_000_000;
    hardware.host_bytes = 20_000_000;
    let load = load(64, 240, 32);
    for mode in [Mode::Hybrid, Mode::Kv, Mode::Act] {
        let (setup, outcome) = outcome(&hardware, &shape, &load, mode);
        assert!(setup.limits.requests < 64, "{mode:?}");
        assert_eq!(outcome.tokens - outcome.preempted, 64 * 32, "{mode:?}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_figures() {
    let (hardware, shape) = (machine(), small());
    let machine = Machine {
        hardware: &hardware,
        shape: &shape,
    };
    let refused = |load: Load| machine.setup(&load, Mode::Hybrid).unwrap_err();
    assert!(matches!(refused(load(0, 5, 5)), SetupError::Nothing { .. }));
    assert!(matches!(
        refused(load(1, 500, 13)),
        SetupError::Context { context: 512, .. }
    ));
    assert!(matches!(
        refused(load(usize::MAX / 2, 5, 5)),
        SetupError::Memory { .. }
    ));
    let none = Hardware {
        device_bytes: 1_000_000,
        ..hardware.clone()
    };
    let machine = Machine {
        hardware: &none,
        shape: &shape,
    };
    let error = machine.setup(&load(1, 50, 5), Mode::Kv).unwrap_err();
    assert!(error.to_string().contains("1000000 bytes"), "{error}");
    let bad = Shape { width: 0, ..shape };
    let machine = Machine {
        hardware: &hardware,
        shape: &bad,
    };
    assert!(matches!(
        machine.setup(&load(1, 5, 5), Mode::Kv),
        Err(SetupError::Shape(_))
    ));
}

#[test]
fn the_papers_orders_hold_on_its_machine() {
    let hardware = rtx_4090();
    let [.., opt_30b, _] = opt_models();
    let load = Load {
        requests: 128,
        prompt: 1_024,
        answer: 8,
        block_tokens: 16,
    };
    let run = |mode| outcome(&hardware, &opt_30b, &load, mode).1;
    let (hybrid, kv, act) = (run(Mode::Hybrid), run(Mode::Kv), run(Mode::Act));
    let whole = run(Mode::NoMiniBatches);
    for end in [kv, act] {
        assert!(
            hybrid.decode.seconds < 0.85 * end.decode.seconds,
            "{hybrid:?} {end:?}"
        );
    }
    assert!(hybrid.tokens_per_s() > 2.0 * whole.tokens_per_s());
    let busy = |outcome: &OffloadOutcome| outcome.decode.busy_s / outcome.decode.seconds;
    assert!(busy(&hybrid) > 3.0 * busy(&kv));
    assert!(hybrid.decode.traffic.cache() < kv.decode.traffic.cache());
    // The policy is at least as good as the one it replaces.
    for other in [Mode::Even, Mode::Algorithm1] {
        assert!(
            hybrid.decode.seconds <= 1.006 * run(other).decode.seconds,
            "{other:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// However fast link and device are, the hybrid is not behind its better end; and every run carries whole blocks of what is
    /// cached, generates everything, and fits.
    #[test]
    fn the_hybrid_is_never_behind_its_ends(
        link in 7.5..11.0_f64,
        flops in 10.5..13.5_f64,
        device_megabytes in 10..80_u64,
        requests in 1..40_usize,
        prompt in 1..300_usize,
        answer in 1..40_usize,
    ) {
        let shape = small();
        let hardware = Hardware {
            flops: 10_f64.powf(flops),
            link_bytes_per_s: 10_f64.powf(link),
            device_bytes: device_megabytes * 1_000_000,
            ..machine()
        };
        let load = load(requests, prompt, answer);
        let (setup, hybrid) = outcome(&hardware, &shape, &load, Mode::Hybrid);
        prop_assert!(setup.arena.total() <= hardware.device_bytes);
        prop_assert_eq!(hybrid.tokens, requests * answer);
        let waves = requests.div_ceil(setup.limits.requests);
        prop_assert_eq!(hybrid.decode_steps, waves * (answer - 1));
        for mode in [Mode::Kv, Mode::Act] {
            let (end, run) = outcome(&hardware, &shape, &load, mode);
            prop_assert!(setup.token_s() <= end.token_s() + 1e-12);
            if setup.waves == 1 && end.waves == 1 {
                prop_assert!(hybrid.decode.seconds <= 1.001 * run.decode.seconds + 1e-12, "{mode:?}: {} {}", hybrid.decode.seconds, run.decode.seconds);
            }
            prop_assert!(hybrid.decode.busy_s <= hybrid.decode.seconds + 1e-12);
        }
        let block = (setup.block_tokens as u64 * shape.layers as u64, hybrid.decode.traffic);
        prop_assert_eq!(block.1.kv % (block.0 * shape.kv_bytes()), 0);
        prop_assert_eq!(block.1.act % (block.0 * shape.act_bytes()), 0);
    }
}
