use super::*;
use proptest::prelude::*;

/// Values of a length field that have to be looked at.
const LENGTHS: [u64; 10] = [
    0,
    1,
    MAX_PARTS as u64,
    MAX_PARTS as u64 + 1,
    u16::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

fn encoded(parts: &[Part]) -> Vec<u8> {
    let mut out = Vec::new();
    Parts::encode(parts, &mut out).unwrap();
    out
}

fn any_access() -> impl Strategy<Value = Access> {
    (0u8..16).prop_map(|bits| Access::from_bits(bits).unwrap())
}

fn any_operation() -> impl Strategy<Value = &'static str> {
    (0..OPERATIONS.len()).prop_map(|i| OPERATIONS[i])
}

fn any_refusal() -> impl Strategy<Value = Error> {
    let stale = prop_oneof![Just(Stale::Incarnation), Just(Stale::Generation), Just(Stale::Epoch)];
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    (any_operation(), numbers, any_access(), any_access(), stale, ".{0,100}", 0..6).prop_map(
        |(operation, (a, b, c), needed, granted, what, why, kind)| match kind {
            0 => Error::OutOfRange { operation, offset: a, size: b, limit: c },
            1 => Error::Access { operation, needed, granted },
            2 => Error::Stale { operation, what, held: a, current: b },
            3 => Error::Misaligned { operation, offset: a, align: b },
            4 => Error::Torn { operation, offset: a >> 1, size: b >> 1 },
            _ => Error::Invalid { operation, why },
        },
    )
}

proptest! {
    #[test]
    fn lists_make_the_way_and_give_back_what_follows(
        parts in proptest::collection::vec((0..1u64 << 40, 0..1u64 << 40), 0..50),
        rest in proptest::collection::vec(any::<u8>(), 0..50),
    ) {
        let parts: Vec<_> = parts.into_iter().map(|(offset, size)| Part { offset, size }).collect();
        let list = encoded(&parts);
        prop_assert_eq!(Parts::needed(*list.first_chunk().unwrap()).unwrap(), list.len());
        let payload = [&list[..], &rest].concat();
        let (decoded, after) = Parts::split(&payload).unwrap();
        prop_assert_eq!(after, &rest[..]);
        prop_assert_eq!(decoded.len(), parts.len());
        prop_assert_eq!(decoded.total(), parts.iter().map(|p| p.size).sum::<u64>());
        prop_assert_eq!(decoded.iter().collect::<Vec<_>>(), parts);
        prop_assert_eq!(Parts::decode(&payload).is_ok(), rest.is_empty());
    }

    #[test]
    fn refusals_make_the_way(sequence in any::<u64>(), why in any_refusal()) {
        let refused = Refused { sequence, why };
        let bytes = refused.encode();
        let decoded = Refused::decode(&bytes).unwrap();
        prop_assert_eq!(decoded.sequence, sequence);
        prop_assert_eq!(format!("{:?}", decoded.why), format!("{:?}", refused.why));
        for cut in 0..bytes.len() {
            prop_assert!(Refused::decode(&bytes[..cut]).is_err());
        }
        prop_assert!(Refused::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn attach_and_attached_make_the_way(
        numbers in (any::<u32>(), any::<u32>(), any::<u64>()), range in (any::<u64>(), any::<u64>()), access in any_access(),
    ) {
        let (slot, generation, epoch) = numbers;
        let attach = Attach { slot, generation, epoch, offset: range.0 >> 1, size: range.1 >> 1, access };
        prop_assert_eq!(Attach::decode(&attach.encode()).unwrap(), attach);
        let attached = Attached { handle: slot, flags: generation };
        prop_assert_eq!(Attached::decode(&attached.encode()).unwrap(), attached);
    }

    #[test]
    fn any_bytes_give_an_error_or_something_that_encodes_to_the_same(
        bytes in proptest::collection::vec(any::<u8>(), 0..100), code in 0u8..8,
    ) {
        crate::fuzz::fuzz_control(&bytes);
        let mut bytes = bytes;
        if let Some(byte) = bytes.get_mut(8) {
            *byte = code;
        }
        crate::fuzz::fuzz_control(&bytes);
    }
}

#[test]
fn a_list_says_no_more_parts_than_there_are_bytes_for() {
    let mut payload = encoded(&[Part { offset: 1, size: 2 }; 3]);
    for length in LENGTHS.into_iter().filter_map(|l| u32::try_from(l).ok()) {
        payload[..4].copy_from_slice(&length.to_le_bytes());
        let result = Parts::decode(&payload);
        assert!(result.is_err(), "{length} parts");
        assert_eq!(Parts::needed(length.to_le_bytes()).is_ok(), length <= 4096);
    }
    payload[..4].copy_from_slice(&3u32.to_le_bytes());
    Parts::decode(&payload).unwrap();
    for cut in 0..payload.len() {
        assert!(Parts::decode(&payload[..cut]).is_err(), "{cut}");
    }
}

#[test]
fn the_longest_list_passes_and_one_part_more_does_not() {
    let part = Part { offset: 0, size: u64::MAX / MAX_PARTS as u64 };
    let longest = encoded(&[part; MAX_PARTS]);
    assert_eq!(longest.len(), MAX_LIST);
    assert_eq!(Parts::decode(&longest).unwrap().len(), MAX_PARTS);
    let mut out = vec![1];
    assert!(matches!(Parts::encode(&[part; MAX_PARTS + 1], &mut out), Err(Error::Invalid { .. })));
    assert_eq!(out, [1]);
    let mut more = longest;
    more[..4].copy_from_slice(&(MAX_PARTS as u32 + 1).to_le_bytes());
    more.extend_from_slice(&[0; PART]);
    assert!(Parts::decode(&more).is_err());
    assert!(Parts::decode(&encoded(&[])).unwrap().is_empty());
}

#[test]
fn sizes_that_overflow_are_refused() {
    for size in LENGTHS {
        let one = encoded(&[Part { offset: 0, size }]);
        assert_eq!(Parts::decode(&one).unwrap().total(), size, "alone nothing overflows");
        let past = encoded(&[Part { offset: u64::MAX, size }]);
        assert_eq!(Parts::decode(&past).is_ok(), size == 0, "offset 2^64-1, size {size}");
        let two = encoded(&[Part { offset: 0, size }, Part { offset: 0, size: 1 << 63 }]);
        assert_eq!(Parts::decode(&two).is_ok(), size < 1 << 63, "{size} + 2^63");
    }
}

#[test]
fn an_attach_with_unknown_rights_or_a_range_that_overflows_is_refused() {
    let attach = Attach { slot: 1, generation: 2, epoch: 3, offset: 8, size: 9, access: Access::ALL };
    let good = attach.encode();
    for bits in 16..=255 {
        let mut bytes = good;
        bytes[32] = bits;
        assert!(Attach::decode(&bytes).is_err(), "rights {bits:#x}");
    }
    for size in LENGTHS {
        let bytes = Attach { size, ..attach }.encode();
        assert_eq!(Attach::decode(&bytes).is_ok(), size <= u64::MAX - 8, "offset 8, size {size}");
    }
    for cut in 0..good.len() {
        assert!(Attach::decode(&good[..cut]).is_err(), "{cut}");
    }
    assert!(Attach::decode(&[&good[..], &[0]].concat()).is_err());
    assert!(Attached::decode(&[0; 7]).is_err());
    assert!(Attached::decode(&[0; 9]).is_err());
}

#[test]
fn a_long_text_is_cut_between_characters_and_a_longer_one_is_not_believed() {
    let why = "ä".repeat(MAX_TEXT);
    let cut = format!("x{}", &why[..MAX_TEXT]);
    for text in [&why, &cut] {
        let bytes = Refused { sequence: 1, why: Error::invalid("put", text.as_str()) }.encode();
        let Error::Invalid { why, .. } = Refused::decode(&bytes).unwrap().why else {
            panic!("another error")
        };
        assert!(text.starts_with(&why) && why.len() > MAX_TEXT - 2, "{} bytes", why.len());
    }
    let good = Refused { sequence: 1, why: Error::invalid("put", "a".repeat(MAX_TEXT)) }.encode();
    Refused::decode(&good).unwrap();
    for length in [0u16, 1, 511, 513, 0x7fff, 0x8000, 0xffff] {
        let mut bytes = good.clone();
        bytes[10..12].copy_from_slice(&length.to_le_bytes());
        assert!(Refused::decode(&bytes).is_err(), "{length}");
        bytes.resize(12 + usize::from(length), b'a');
        assert_eq!(Refused::decode(&bytes).is_ok(), length <= 512, "{length}");
    }
    let mut bytes = good;
    bytes[12] = 0xff;
    assert!(Refused::decode(&bytes).is_err(), "not utf-8");
}

#[test]
fn what_has_no_code_of_its_own_travels_as_text() {
    let why = Error::Closed { operation: "put", what: "window" };
    let decoded = Refused::decode(&Refused { sequence: 7, why }.encode()).unwrap();
    assert_eq!(
        decoded.into_error().to_string(),
        "refused by the target: operation: put: the window is closed"
    );
}

#[test]
fn an_operation_that_this_side_does_not_know_has_a_name_still() {
    let why = Error::Misaligned { operation: "something new", offset: 3, align: 8 };
    let mut bytes = Refused { sequence: 7, why }.encode();
    assert!(Refused::decode(&bytes).unwrap().why.to_string().starts_with("operation: offset 3"));
    bytes[9] = 255;
    assert!(Refused::decode(&bytes).unwrap().why.to_string().starts_with("operation: offset 3"));
}

#[test]
fn a_torn_accumulate_does_not_become_one_that_wrote_nothing() {
    let why = Error::Torn { operation: "accumulate", offset: 0, size: 64 };
    let error = Refused::decode(&Refused { sequence: 1, why }.encode()).unwrap().into_error();
    assert_eq!(error.outcome(), Some(transom_registry::Outcome::InDoubt));
}

#[test]
fn unknown_codes_are_refused() {
    for code in (0..=255).filter(|c| !(1..=6).contains(c)) {
        let mut bytes = [0; 34];
        bytes[8] = code;
        assert!(Refused::decode(&bytes).unwrap_err().to_string().contains("unknown code"), "{code}");
    }
}
