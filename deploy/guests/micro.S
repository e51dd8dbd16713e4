# micro guest: a boot sector that behaves like a machine for a control plane.
# 512 bytes of real-mode code; no OS.  Needs only a SeaBIOS "pc" (i440fx) or q35.
#   prints  "STILLWATER BOOT image=<name> boots=<n>"  then "STILLWATER READY"  on COM1
#   counts its boots in sector 1 of the disk it booted from (proves what survives)
#   polls the ACPI power button (PM1a status) once per tick; after ready_after
#   seconds it obeys: prints "STILLWATER POWERBTN", waits shutdown_delay, goes to S5.
#   dirty=1: touches 2 MiB of pages 18 times a second, so a live migration limited to
#   1 MiB/s never converges (abort, force-complete and post-copy can be tested)
#   ticks=1: prints "STILLWATER TICK <n>" about once a second (proves that it was not booted again)
# Parameter block (patched by micro.py) follows the marker SWPARAMS.
    .code16
    .globl _start
_start:
    ljmp $0, $1f
1:  xor %ax, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $0x7c00, %sp
    sti
    mov %dl, drive
    mov $msg_boot, %si
    call say
    mov $image, %si
    call puts
    mov $msg_boots, %si
    call puts
    mov $0x0201, %ax            # read sector 2 (CHS 0/0/2) -> 0x8000
    call disk
    jc 2f
    incw 0x8000
    mov $0x0301, %ax            # write it back
    call disk
2:  mov 0x8000, %ax
    call putdec
    mov $msg_nl, %si
    call puts
    # find PM1a registers: PMBASE.  Both machines: read the PCI config.
    mov $0x80000b40, %eax       # i440fx: bus0 dev1 fn3 reg 0x40
    call pciread
    cmp $0xffff, %ax
    jne 3f
    mov $0x8000f840, %eax       # q35: bus0 dev31 fn0 reg 0x40
    call pciread
3:  and $0xffc0, %ax
    mov %ax, %bp                # PMBASE
    movzbw ready_after, %cx
    call sleep_s
    lea 2(%bp), %dx             # PM1a enable: QEMU drops presses until this is set
    mov $0x0100, %ax
    out %ax, %dx
    mov $msg_ready, %si
    call say
    cmpb $2, ignore             # nobody asks it to: it waits shutdown_delay, and goes to S5
    je 14f
4:  hlt                         # woken by the 18.2 Hz timer
    cmpb $0, dirty
    je 12f
    call unreal                 # then touch 512 pages (1..3 MiB) on every tick
    mov $0x100000, %eax
11: incl %fs:(%eax)
    add $0x1000, %eax
    cmp $0x300000, %eax
    jb 11b
    sti
12: cmpb $0, ticks
    je 13f
    mov 0x46c, %ax
    shr $4, %ax                 # another one every 0.9 seconds
    cmp 0x8004, %ax
    je 13f
    mov %ax, 0x8004
    incw 0x8002                 # 0 at every boot
    mov $msg_tick, %si
    call say
    mov 0x8002, %ax
    call putdec
    mov $msg_nl, %si
    call puts
13: mov %bp, %dx
    in %dx, %ax
    test $0x0100, %ax
    jz 4b
    mov $0x0100, %ax
    out %ax, %dx
    mov $msg_btn, %si
    call say
    cmpb $0, ignore
    jne 4b
14: movzbw delay, %cx
    call sleep_s
    mov $msg_down, %si
    call say
    lea 4(%bp), %dx
    mov $0x2000, %ax            # SLP_EN, SLP_TYP 0 = S5 in QEMU
    out %ax, %dx
5:  hlt
    jmp 5b

sleep_s:                        # CX seconds, by the BIOS tick count (~18/s)
    jcxz 7f
    imul $18, %cx
    mov 0x46c, %bx
6:  hlt
    mov 0x46c, %ax
    sub %bx, %ax
    cmp %cx, %ax
    jb 6b
7:  ret

unreal:                         # FS = flat 4 GiB segment, still in real mode; IF off
    cli
    lgdt gdtr
    mov %cr0, %eax
    or $1, %al
    mov %eax, %cr0
    mov $8, %bx
    mov %bx, %fs
    and $0xfe, %al
    mov %eax, %cr0
    xor %bx, %bx
    mov %bx, %fs                # base 0, the limit stays
    ret

disk:
    xor %bx, %bx
    mov %bx, %es
    mov $0x8000, %bx
    mov $2, %cx
    xor %dh, %dh
    mov drive, %dl
    int $0x13
    ret

pciread:                        # EAX = address -> AX
    mov $0xcf8, %dx
    out %eax, %dx
    mov $0xcfc, %dx
    in %dx, %ax
    ret

say:                            # one line of ours: the prefix, then SI
    push %si
    mov $prefix, %si
    call puts
    pop %si
puts:
    lodsb
    test %al, %al
    jz 8f
    call putc
    jmp puts
8:  ret
putc:                           # COM1 and the screen
    mov $0x3f8, %dx
    out %al, %dx
    mov $0x0e, %ah
    mov $7, %bx
    int $0x10
    ret
putdec:                         # AX
    mov $10, %bx
    xor %cx, %cx
9:  xor %dx, %dx
    div %bx
    push %dx
    inc %cx
    test %ax, %ax
    jnz 9b
10: pop %ax
    add $'0', %al
    push %cx
    call putc
    pop %cx
    loop 10b
    ret

prefix:    .asciz "STILLWATER"
msg_boot:  .asciz " BOOT image="
msg_boots: .asciz " boots="
msg_ready: .asciz " READY\r\n"
msg_tick:  .asciz " TICK "
msg_btn:   .asciz " POWERBTN\r\n"
msg_down:  .ascii " DOWN"
msg_nl:    .asciz "\r\n"
gdt:       .quad 0, 0x00cf92000000ffff
gdtr:      .word 15
           .long gdt
drive:     .byte 0
           .ascii "SWPARAMS"
delay:       .byte 0
ready_after: .byte 0
ignore:      .byte 0
dirty:       .byte 0
ticks:       .byte 0
image:     .fill 16, 1, 0
    .org 510
    .word 0xaa55
