use super::*;
use Effect::{Fence, Locked, StorePastCache, Unsupported, WriteBack, WriteBackAll, WriteBackNow};

const NONE: Address = Address { segment: None, base: None, index: None, displacement: 0, short: false };

const fn at(base: u8) -> Address {
    Address { base: Some(base), ..NONE }
}

/// Bytes as GNU as makes them, and the text that objdump gives for them.
const ENCODINGS: &[(&str, &[u8], Option<Effect>)] = &[
    ("clwb (%rdi)", &[0x66, 0x0f, 0xae, 0x37], Some(WriteBack(at(7)))),
    (
        "clwb 0x8(%rax,%rcx,4)",
        &[0x66, 0x0f, 0xae, 0x74, 0x88, 0x08],
        Some(WriteBack(Address { base: Some(0), index: Some((1, 2)), displacement: 8, ..NONE })),
    ),
    (
        "clwb -0x40(%r12)",
        &[0x66, 0x41, 0x0f, 0xae, 0x74, 0x24, 0xc0],
        Some(WriteBack(Address { displacement: -64, ..at(12) })),
    ),
    ("clwb 0x0(%r13)", &[0x66, 0x41, 0x0f, 0xae, 0x75, 0x00], Some(WriteBack(at(13)))),
    (
        "clwb 0x12345678(%rsp)",
        &[0x66, 0x0f, 0xae, 0xb4, 0x24, 0x78, 0x56, 0x34, 0x12],
        Some(WriteBack(Address { displacement: 0x1234_5678, ..at(4) })),
    ),
    ("clwb (%edi)", &[0x67, 0x66, 0x0f, 0xae, 0x37], Some(WriteBack(Address { short: true, ..at(7) }))),
    (
        "clwb %fs:(%rax)",
        &[0x64, 0x66, 0x0f, 0xae, 0x30],
        Some(WriteBack(Address { segment: Some(Segment::Fs), ..at(0) })),
    ),
    (
        "clwb %gs:0x10(,%r14,8)",
        &[0x65, 0x66, 0x42, 0x0f, 0xae, 0x34, 0xf5, 0x10, 0x00, 0x00, 0x00],
        Some(WriteBack(Address { segment: Some(Segment::Gs), index: Some((14, 3)), displacement: 0x10, ..NONE })),
    ),
    (
        "clwb 0x1000",
        &[0x66, 0x0f, 0xae, 0x34, 0x25, 0x00, 0x10, 0x00, 0x00],
        Some(WriteBack(Address { displacement: 0x1000, ..NONE })),
    ),
    ("clwb 0x0(%rip)", &[0x66, 0x0f, 0xae, 0x35, 0x00, 0x00, 0x00, 0x00], Some(Unsupported)),
    ("clflushopt (%rsi)", &[0x66, 0x0f, 0xae, 0x3e], Some(WriteBack(at(6)))),
    (
        "clflushopt (%r9,%r10,2)",
        &[0x66, 0x43, 0x0f, 0xae, 0x3c, 0x51],
        Some(WriteBack(Address { index: Some((10, 1)), ..at(9) })),
    ),
    ("clflush (%rdi)", &[0x0f, 0xae, 0x3f], Some(WriteBackNow(at(7)))),
    ("clflush 0x40(%r8)", &[0x41, 0x0f, 0xae, 0x78, 0x40], Some(WriteBackNow(Address { displacement: 64, ..at(8) }))),
    ("sfence", &[0x0f, 0xae, 0xf8], Some(Fence)),
    ("mfence", &[0x0f, 0xae, 0xf0], Some(Fence)),
    ("lfence", &[0x0f, 0xae, 0xe8], None),
    ("wbinvd", &[0x0f, 0x09], Some(WriteBackAll)),
    ("wbnoinvd", &[0xf3, 0x0f, 0x09], Some(WriteBackAll)),
    ("invd", &[0x0f, 0x08], Some(Unsupported)),
    ("movnti %eax,(%rdi)", &[0x0f, 0xc3, 0x07], Some(StorePastCache)),
    ("movnti %rax,(%rdi)", &[0x48, 0x0f, 0xc3, 0x07], Some(StorePastCache)),
    ("movnti %r9,(%r10)", &[0x4d, 0x0f, 0xc3, 0x0a], Some(StorePastCache)),
    ("movntq %mm0,(%rdi)", &[0x0f, 0xe7, 0x07], Some(StorePastCache)),
    ("movntdq %xmm0,(%rdi)", &[0x66, 0x0f, 0xe7, 0x07], Some(StorePastCache)),
    ("movntdq %xmm9,(%r11)", &[0x66, 0x45, 0x0f, 0xe7, 0x0b], Some(StorePastCache)),
    ("movntps %xmm1,(%rdi)", &[0x0f, 0x2b, 0x0f], Some(StorePastCache)),
    ("movntpd %xmm1,(%rdi)", &[0x66, 0x0f, 0x2b, 0x0f], Some(StorePastCache)),
    ("maskmovq %mm1,%mm2", &[0x0f, 0xf7, 0xd1], Some(StorePastCache)),
    ("maskmovdqu %xmm1,%xmm2", &[0x66, 0x0f, 0xf7, 0xd1], Some(StorePastCache)),
    ("vmovntdq %ymm0,(%rdi)", &[0xc5, 0xfd, 0xe7, 0x07], Some(StorePastCache)),
    ("vmovntdq %ymm9,(%r11)", &[0xc4, 0x41, 0x7d, 0xe7, 0x0b], Some(StorePastCache)),
    ("vmovntps %ymm0,(%rdi)", &[0xc5, 0xfc, 0x2b, 0x07], Some(StorePastCache)),
    ("vmovntpd %xmm0,(%rdi)", &[0xc5, 0xf9, 0x2b, 0x07], Some(StorePastCache)),
    ("vmaskmovdqu %xmm1,%xmm2", &[0xc5, 0xf9, 0xf7, 0xd1], Some(StorePastCache)),
    ("vmovntdq %zmm0,(%rdi)", &[0x62, 0xf1, 0x7d, 0x48, 0xe7, 0x07], Some(StorePastCache)),
    ("vmovntdq %zmm17,(%r11)", &[0x62, 0xc1, 0x7d, 0x48, 0xe7, 0x0b], Some(StorePastCache)),
    ("vmovntps %zmm0,0x40(%rdi)", &[0x62, 0xf1, 0x7c, 0x48, 0x2b, 0x47, 0x01], Some(StorePastCache)),
    ("vmovntpd %zmm0,(%rdi)", &[0x62, 0xf1, 0xfd, 0x48, 0x2b, 0x07], Some(StorePastCache)),
    ("movdiri %rax,(%rdi)", &[0x48, 0x0f, 0x38, 0xf9, 0x07], Some(StorePastCache)),
    ("movdir64b (%rsi),%rdi", &[0x66, 0x0f, 0x38, 0xf8, 0x3e], Some(StorePastCache)),
    ("movntsd %xmm0,(%rdi)", &[0xf2, 0x0f, 0x2b, 0x07], Some(StorePastCache)),
    ("movntss %xmm0,(%rdi)", &[0xf3, 0x0f, 0x2b, 0x07], Some(StorePastCache)),
    ("lock addl $0x0,(%rsp)", &[0xf0, 0x83, 0x04, 0x24, 0x00], Some(Locked)),
    ("lock cmpxchg %rcx,(%rdi)", &[0xf0, 0x48, 0x0f, 0xb1, 0x0f], Some(Locked)),
    ("xchg %rax,(%rdi)", &[0x48, 0x87, 0x07], Some(Locked)),
    ("xchg %al,(%rdi)", &[0x86, 0x07], Some(Locked)),
    ("xchg %rax,%rbx", &[0x48, 0x93], None),
    ("xchg %eax,%ecx", &[0x91], None),
    ("xsaveopt (%rdi)", &[0x0f, 0xae, 0x37], None),
    ("xsave (%rdi)", &[0x0f, 0xae, 0x27], None),
    ("clrssbsy (%rdi)", &[0xf3, 0x0f, 0xae, 0x37], None),
    ("tpause %eax", &[0x66, 0x0f, 0xae, 0xf0], None),
    ("umonitor %rax", &[0xf3, 0x0f, 0xae, 0xf0], None),
    ("movntdqa (%rdi),%xmm0", &[0x66, 0x0f, 0x38, 0x2a, 0x07], None),
    ("vmovntdqa (%rdi),%zmm0", &[0x62, 0xf2, 0x7d, 0x48, 0x2a, 0x07], None),
    ("cldemote (%rdi)", &[0x0f, 0x1c, 0x07], None),
    ("movdqu %xmm0,(%rdi)", &[0xf3, 0x0f, 0x7f, 0x07], None),
    ("rep movsb %ds:(%rsi),%es:(%rdi)", &[0xf3, 0xa4], None),
    ("rep stos %rax,%es:(%rdi)", &[0xf3, 0x48, 0xab], None),
    ("xabort $0x1", &[0xc6, 0xf8, 0x01], None),
    ("mov %rax,(%rdi)", &[0x48, 0x89, 0x07], None),
    ("nopw (%rax,%rax,1)", &[0x66, 0x0f, 0x1f, 0x04, 0x00], None),
    ("vmovdqu %ymm0,(%rdi)", &[0xc5, 0xfe, 0x7f, 0x07], None),
    ("nop with an id", &[0x0f, 0x1f, 0x80, 0x09, 0xab, 0x50, 0x51], Some(Effect::Mark(9))),
    ("clwb (%rdi) with idle prefixes", &[0x3e, 0x66, 0x66, 0x0f, 0xae, 0x37], Some(WriteBack(at(7)))),
];

#[test]
fn every_encoding_has_its_effect() {
    for (text, bytes, effect) in ENCODINGS {
        assert_eq!(decode(bytes), *effect, "{text}");
        if let Some(WriteBack(address) | WriteBackNow(address)) = effect {
            assert_eq!(Address::unpack(address.pack()), *address, "{text}");
        }
    }
}

#[test]
fn no_bytes_make_it_fail() {
    for (text, bytes, _) in ENCODINGS {
        for length in 0..bytes.len() {
            let effect = decode(&bytes[..length]);
            assert!(
                !matches!(effect, Some(Effect::Mark(_) | WriteBack(Address { displacement: 1.., .. }))),
                "{text}: {effect:?}"
            );
        }
    }
    assert_eq!(decode(&[0x66; 15]), None);
}

#[test]
fn addresses_are_sums_cut_where_the_prefix_says() {
    let register = |number: u8| [0x1_0000_0000, 3, 0, 0, 0xffff_ffff_ffff_fff0][usize::from(number)];
    let segment = |segment| if segment == Segment::Fs { 0x10 } else { 0x7000_0000_0000 };
    assert_eq!(at(0).resolve(register, segment), 0x1_0000_0000);
    let sum = Address { index: Some((1, 3)), displacement: -8, ..at(0) };
    assert_eq!(sum.resolve(register, segment), 0x1_0000_0010);
    assert_eq!(Address { segment: Some(Segment::Gs), ..sum }.resolve(register, segment), 0x7001_0000_0010);
    assert_eq!(Address { short: true, segment: Some(Segment::Fs), ..sum }.resolve(register, segment), 0x20);
    assert_eq!(Address { displacement: 0x20, ..at(4) }.resolve(register, segment), 0x10);
}
