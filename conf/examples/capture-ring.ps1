# Not run here: nothing of this project runs on Windows. Made from Microsoft's pages on pktmon and scheduled tasks:
#   https://learn.microsoft.com/en-us/windows-server/administration/windows-commands/pktmon-start
#   https://learn.microsoft.com/en-us/windows-server/administration/windows-commands/pktmon-filter-add
#   https://learn.microsoft.com/en-us/windows-server/networking/technologies/pktmon/pktmon-pcapng-support
#
# Records the traffic of Message Queuing on this machine without end, as pcapng files in $Folder\pcapng, and deletes
# those that are older than $KeepHours. Windows Server 2019, Windows 10 2004 or later; as administrator.
#
# Set: $Folder, $KeepHours, $Address. Then once:  powershell -File capture-ring.ps1 -Action Register
# Give the folder pcapng to the pipeline (msmq run_all --captures ...). The files hold message bodies: restrict who may
# read the folder.
#
# With Npcap, one command of dumpcap does the same, and counts the packets that it loses:
#   dumpcap -i Ethernet -s 0 -B 64 -b filesize:100000 -b files:50 `
#     -f "host 10.1.2.3 and tcp" -w C:\msmq-capture\ring.pcapng

param([ValidateSet('Register', 'Start', 'Collect')] [string] $Action = 'Collect')

$Folder = 'C:\msmq-capture'
$KeepHours = 48
# An address of this machine: all TCP traffic to and from it, also RPC on dynamic ports. Empty: only the ports below.
$Address = ''
$Ports = 1801, 135, 2101, 2103, 2105, 2107
$FileMegabytes = 100

$ErrorActionPreference = 'Stop'
$Etl = Join-Path $Folder 'etl'
$Pcapng = Join-Path $Folder 'pcapng'
New-Item -ItemType Directory -Force -Path $Etl, $Pcapng | Out-Null

# Converts closed log files and deletes them; what cannot be converted is kept as .bad. While pktmon records, the log
# file that was made last is open.
function Convert-Logs([switch] $All) {
    $logs = @(Get-ChildItem -Path $Etl -Filter *.etl | Sort-Object -Property CreationTimeUtc)
    if (-not $All) { $logs = @($logs | Select-Object -SkipLast 1) }
    foreach ($log in $logs) {
        $unfinished = Join-Path $Etl "$($log.BaseName).pcapng"
        pktmon etl2pcap $log.FullName --out $unfinished
        if ($LASTEXITCODE -ne 0) {
            Rename-Item -Path $log.FullName -NewName "$($log.Name).bad"
            continue
        }
        Move-Item -Path $unfinished -Destination $Pcapng  # so that the pipeline sees whole files only
        Remove-Item -Path $log.FullName
    }
}

switch ($Action) {
    'Register' {
        $shell = "-NoProfile -ExecutionPolicy Bypass -File `"$PSCommandPath`" -Action"
        $system = New-ScheduledTaskPrincipal -UserId 'SYSTEM' -RunLevel Highest
        $start = New-ScheduledTaskAction -Execute 'powershell.exe' -Argument "$shell Start"
        $boot = New-ScheduledTaskTrigger -AtStartup
        Register-ScheduledTask -Force -TaskName 'msmq-capture-start' -Action $start -Trigger $boot -Principal $system
        $collect = New-ScheduledTaskAction -Execute 'powershell.exe' -Argument "$shell Collect"
        $quarter = New-ScheduledTaskTrigger -Once -At (Get-Date) -RepetitionInterval (New-TimeSpan -Minutes 15)
        Register-ScheduledTask -Force -TaskName 'msmq-capture-collect' -Action $collect -Trigger $quarter `
            -Principal $system
        Start-ScheduledTask -TaskName 'msmq-capture-start'
    }
    'Start' {
        pktmon stop
        Convert-Logs -All
        pktmon filter remove
        if ($Address) { pktmon filter add MSMQ -i $Address -t TCP }
        else { foreach ($port in $Ports) { pktmon filter add "MSMQ$port" -t TCP -p $port } }
        pktmon start --capture --comp nics --pkt-size 0 --log-mode multi-file `
            --file-size $FileMegabytes --file-name (Join-Path $Etl "msmq-$(Get-Date -Format yyyyMMdd-HHmmss)-.etl")
        if ($LASTEXITCODE -ne 0) { throw 'pktmon start failed' }
    }
    'Collect' {
        Convert-Logs
        $oldest = (Get-Date).ToUniversalTime().AddHours(-$KeepHours)
        Get-ChildItem -Path $Etl, $Pcapng | Where-Object Extension -in '.pcapng', '.bad' |
            Where-Object LastWriteTimeUtc -lt $oldest | Remove-Item
    }
}
